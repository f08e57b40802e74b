"""Start the pair, after a stop or while it rests, and follow until it serves.

pyinfra inventory.py ops/start.py         shows it, and asks
pyinfra -y inventory.py ops/start.py      does it
"""

from pyinfra import inventory

from operations.ops import claim, order
from spec.load import settings_from_pyinfra

settings = settings_from_pyinfra(inventory)

claim(settings)
order(name="Keeper | Start the pair", settings=settings, word="start", wanted="running", _sudo=True)
