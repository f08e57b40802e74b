"""Which release is installed, which programs and which image run. Changes nothing.

pyinfra inventory.py ops/version.py
"""

from pyinfra import inventory

from operations.ops import tell
from spec.load import settings_from_pyinfra

tell(settings_from_pyinfra(inventory), "version")
