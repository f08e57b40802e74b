"""Stop the pair, and leave it stopped over reboots and deploys.

pyinfra inventory.py ops/stop.py         shows it, and asks
pyinfra -y inventory.py ops/stop.py      does it
"""

from pyinfra import inventory

from operations.ops import claim, order
from spec.load import settings_from_pyinfra

settings = settings_from_pyinfra(inventory)

claim(settings)
order(name="Keeper | Stop the pair", settings=settings, word="stop", wanted="stopped", _sudo=True)
