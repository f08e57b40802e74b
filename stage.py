"""Bring image, weights and drafter to the nodes, and touch no container: what runs goes on. deploy.py includes it.

pyinfra inventory.py stage.py             shows what would change, and asks
pyinfra -y inventory.py stage.py          does it
"""

from pyinfra import inventory

from operations.run import begin
from roles.fabric import fabric
from roles.image import image
from roles.node_os import node_os
from roles.preflight import preflight_staging
from roles.weights import weights
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = begin(settings_from_pyinfra(inventory), resolve)

preflight_staging(run)
node_os(run=run, _sudo=True)
fabric(run=run, _sudo=True)
image(run=run, _sudo=True)
weights(run=run, _sudo=True)
