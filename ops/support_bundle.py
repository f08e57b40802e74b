"""One archive of what all nodes can tell of a fault, without secrets, brought to this directory. Changes no node.

pyinfra inventory.py ops/support_bundle.py
SPARKPAIR_ARGS=--without-engine-logs pyinfra inventory.py ops/support_bundle.py
"""

from pyinfra import inventory

from operations.ops import fetch_bundle
from spec.load import settings_from_pyinfra

fetch_bundle(settings_from_pyinfra(inventory))
