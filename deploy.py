"""Make the nodes be what group_data/all.py says. A second run does nothing.

pyinfra inventory.py deploy.py            shows what would change, and asks
pyinfra -y inventory.py deploy.py         does it
pyinfra --dry --diff inventory.py deploy.py
"""

from pyinfra import inventory

from operations.outlook import outlook
from operations.run import begin
from roles.docker import docker
from roles.engine import engine
from roles.fabric import fabric
from roles.gate import gate
from roles.image import image
from roles.keeper import keeper
from roles.memory import memory
from roles.nfs import leave_nfs, nfs
from roles.node_os import node_os
from roles.preflight import preflight
from roles.upkeep import good_host, upkeep
from roles.weights import weights
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = begin(settings_from_pyinfra(inventory), resolve)

preflight(run)
node_os(run=run, _sudo=True)
fabric(run=run, _sudo=True)
docker(run=run, _sudo=True)
image(run=run, _sudo=True)
weights(run=run, _sudo=True)
nfs(run=run, _sudo=True)
upkeep(run=run, _sudo=True)
memory(run=run, _sudo=True)
engine(run=run, _sudo=True)
gate(run=run, _sudo=True)
keeper(run=run, _sudo=True)
leave_nfs(run=run, _sudo=True)
good_host(run=run, _sudo=True)
outlook(run)
