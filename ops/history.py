"""What happened on the pair, oldest first. Changes nothing.

pyinfra inventory.py ops/history.py
SPARKPAIR_ARGS='--lines 100' pyinfra inventory.py ops/history.py
"""

from pyinfra import inventory

from operations.ops import tell
from spec.load import settings_from_pyinfra

tell(settings_from_pyinfra(inventory), "history")
