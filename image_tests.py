"""Run the engine's own tests inside its image, on the head. The pair stops for them and starts again, so it is away for
as long as they take and for one start. SPARKPAIR_IMAGE_TESTS names a checkout of the engine on this machine.

SPARKPAIR_IMAGE_TESTS=DIRECTORY pyinfra inventory.py image_tests.py
"""

from pyinfra import inventory

from operations.image_tests import copy_tests, preflight, run_tests
from operations.run import as_set_up
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = as_set_up(settings_from_pyinfra(inventory), resolve)

preflight(run)
copy_tests(name="Image | Copy the image's own tests", run=run, _sudo=True)
run_tests(name="Image | Stop the pair, run the image's own tests, start the pair", run=run, _sudo=True)
