"""Ask the gates anew of the pair that serves: it is warm afterwards, and this fails where one of them does.

pyinfra inventory.py ops/warm_up.py         shows it, and asks
pyinfra -y inventory.py ops/warm_up.py      does it
"""

from pyinfra import inventory

from operations.ops import ask_gates, claim
from spec.load import settings_from_pyinfra

settings = settings_from_pyinfra(inventory)

claim(settings)
ask_gates(name="Keeper | Ask the gates of the pair", settings=settings, _sudo=True)
