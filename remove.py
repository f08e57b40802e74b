"""Take Sparkpair off the nodes: what docs/objects.md lists goes, and the pair with it. Weights, drafter, compiled
kernels, image, API key and the rails stay unless remove_also names them; Docker's settings always stay.

pyinfra inventory.py remove.py --dry                                shows what goes and what stays
pyinfra inventory.py remove.py                                      shows it, and asks
pyinfra -y inventory.py remove.py --data remove_also=image,cache    takes these as well
"""

from pyinfra import host, inventory

from operations.remains import tell
from operations.run import as_set_up
from roles.remove import preflight_remove, remove
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = as_set_up(settings_from_pyinfra(inventory), resolve)

preflight_remove(run)
if host.name == run.cluster.head.name:
    tell(run)
remove(run=run, _sudo=True)
