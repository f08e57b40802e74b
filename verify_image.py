"""Does the image hold by itself what its stack needs? One line for each check; exit 1 where one fails. Touches no rank.

pyinfra inventory.py verify_image.py
"""

from pyinfra import host, inventory, logger
from pyinfra.api.exceptions import DeployError

from checks.verdict import failures
from operations.run import as_set_up
from operations.verify_image import statements
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = as_set_up(settings_from_pyinfra(inventory), resolve)
if host.name == run.cluster.head.name:
    verdicts = []
    for verdict in statements(run):
        verdicts.append(verdict)
        mark = {True: "ok     ", False: "FAILED ", None: "UNKNOWN"}[verdict.holds]
        logger.info(f"    {mark} {verdict.where + ': ' if verdict.where else ''}{verdict.statement}")
    wrong = failures(verdicts)
    if wrong:
        lines = "\n".join(verdict.text() for verdict in wrong)
        raise DeployError(f"The image is not as it must be: {len(wrong)} of {len(verdicts)} statements fail.\n{lines}")
    logger.info(f"    The image is whole: all {len(verdicts)} statements hold.")
