"""Remove what nothing needs any more: images of ours, layers that a registry kept, parts of files. Shows it first, with
sizes, and asks.

pyinfra inventory.py prune.py --dry       shows it only
pyinfra inventory.py prune.py             shows it, and asks
pyinfra -y inventory.py prune.py          does it
"""

from pyinfra import host, inventory

from operations.leftovers import tell
from operations.run import as_set_up
from roles.preflight import preflight_removal
from roles.prune import prune
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = as_set_up(settings_from_pyinfra(inventory), resolve)

preflight_removal(run)
if host.name == run.cluster.head.name:
    tell(run)
prune(run=run, _sudo=True)
