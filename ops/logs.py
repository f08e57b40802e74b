"""All ranks' last lines, merged by time. Changes nothing.

pyinfra inventory.py ops/logs.py
SPARKPAIR_ARGS='--lines 200 --times' pyinfra inventory.py ops/logs.py
"""

from pyinfra import inventory

from operations.ops import tell
from spec.load import settings_from_pyinfra

tell(settings_from_pyinfra(inventory), "logs")
