"""Stop and start both ranks, and follow until the pair serves again.

pyinfra inventory.py ops/restart.py         shows it, and asks
pyinfra -y inventory.py ops/restart.py      does it
"""

from pyinfra import inventory

from operations.ops import claim, order
from spec.load import settings_from_pyinfra

settings = settings_from_pyinfra(inventory)

claim(settings)
order(name="Keeper | Restart the pair", settings=settings, word="restart", wanted="running", _sudo=True)
