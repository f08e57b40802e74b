"""What a deploy would do, by pyinfra's own --dry --json on two pretended hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from operations.files import masked
from spec import objects
from tests.plan.cases import CASES
from tests.plan.conftest import Outcome

A, B = "@fake/spark-a", "@fake/spark-b"
BOTH, HEAD, WORKER = [A, B], [A], [B]

FRESH = {
    "Node OS | Install the directories": BOTH,
    "Node OS | Install the user sparkpair": WORKER,
    "Node OS | Install the programs": BOTH,
    "Node OS | Install the sparkpair command": BOTH,
    "Fabric | Install 60-sparkpair.yaml": BOTH,
    "Fabric | Set the rails up": BOTH,
    "Docker | Register the NVIDIA runtime": BOTH,
    "Docker | Restart Docker": BOTH,
    "Image | Pull the engine image": BOTH,
    "Weights | Record the manifest of the weights": HEAD,
    "Weights | Start serving the weights on the rails": HEAD,
    "Weights | Pull the weights": WORKER,
    "Weights | Stop serving the weights": HEAD,
    "Upkeep | Install sparkpair-weights-deep.service": BOTH,
    "Upkeep | Install sparkpair-weights-deep.timer": BOTH,
    "Upkeep | Start sparkpair-weights-deep.timer": BOTH,
    "Memory | Install sparkpair-recorder.service": BOTH,
    "Memory | Start the new recorder": BOTH,
    "Memory | Install what protects the login": BOTH,
    "Engine | Install the wanted launch": BOTH,
    "Keeper | Install the keeper's settings": HEAD,
    "Keeper | Install the keeper's key": HEAD,
    "Keeper | Install what lets the keeper in": BOTH,
    "Keeper | Install sparkpair-agent.service": BOTH,
    "Keeper | Install sparkpair-keeper.service": HEAD,
    "Keeper | Start the new agent": BOTH,
    "Keeper | Start the new keeper": HEAD,
    "Keeper | Start the pair": HEAD,
}
START, RESTART = {"Keeper | Start the pair": HEAD}, {"Keeper | Restart the pair": HEAD}
LAUNCH = {"Engine | Install the wanted launch": BOTH}
MAKE_KEY, LAUNCH_HEAD = {"Engine | Make the API key": HEAD}, {"Engine | Install the wanted launch": HEAD}
SETTINGS_OF_KEEPER = {"Keeper | Install the keeper's settings": HEAD, "Keeper | Start the new keeper": HEAD}
COPY = {
    "Weights | Start serving the weights on the rails": HEAD,
    "Weights | Pull the weights": WORKER,
    "Weights | Stop serving the weights": HEAD,
}

PLANS: dict[str, dict[str, list[str]]] = {
    "fresh": FRESH,
    "converged": {},
    "converged, after a login banner": {},
    "a knob": LAUNCH | RESTART,
    "a watch interval": SETTINGS_OF_KEEPER,
    "a smoke prompt": SETTINGS_OF_KEEPER,
    "the rails' MTU": {"Fabric | Install 60-sparkpair.yaml": BOTH, "Fabric | Set the rails up": BOTH},
    "an image": {"Image | Pull the engine image": BOTH} | LAUNCH | RESTART,
    "the timer was switched off": {"Upkeep | Start sparkpair-weights-deep.timer": WORKER},
    "an image that the worker reaches": {
        "Image | Start the registry for the peer": BOTH,
        "Image | Pull the engine image": BOTH,
        "Image | Stop the registry for the peer": BOTH,
    }
    | LAUNCH
    | RESTART,
    "the image's registry was left": {
        "Image | Stop the registry for the peer": BOTH,
        "Image | Set the name of the engine image": WORKER,
    },
    "older programs run": {"Keeper | Start the new agent": WORKER, "Keeper | Start the new keeper": HEAD},
    "the keeper loaded other settings": {"Keeper | Start the new keeper": HEAD},
    "the keeper died": {"Keeper | Start the new keeper": HEAD},
    "little memory will be left, and nothing changes": {},
    "an older recorder runs": {"Memory | Start the new recorder": WORKER},
    "the recorder died": {
        "Memory | Install sparkpair-recorder.service": WORKER,
        "Memory | Start the new recorder": WORKER,
    },
    "systemd has not read the login's protection": {"Memory | Install what protects the login": WORKER},
    "the login is to be protected no longer": {"Memory | Remove what protects the login": BOTH},
    "starting": {},
    "resting": START,
    "resting, and the rails must have passed": START | {"Fabric | Measure the rails": HEAD},
    "serving, and the rails must have passed": {},
    "stopped on purpose": {},
    "stopped on purpose, and a knob": LAUNCH,
    "another generation is accepted": RESTART,
    "a rail lost its MTU": {"Fabric | Set the rails up": WORKER},
    "the rails were never confirmed": {"Fabric | Set the rails up": WORKER},
    "Docker was not restarted": {"Docker | Restart Docker": WORKER},
    "the worker lacks the weights": COPY,
    "a copy was interrupted": COPY,
    "a key is asked for": MAKE_KEY | LAUNCH_HEAD | SETTINGS_OF_KEEPER | RESTART,
    "a key is asked for, and the operator wrote one": LAUNCH_HEAD | SETTINGS_OF_KEEPER | RESTART,
    "converged, with a key": {},
    "another key": RESTART,
    "the key is gone": MAKE_KEY | RESTART,
    "others may read the key": MAKE_KEY,
    "no key is asked for any more": LAUNCH_HEAD | SETTINGS_OF_KEEPER | RESTART,
    "fresh, with a key": FRESH | MAKE_KEY,
    "another bind": LAUNCH | RESTART,
    "the weights were touched": {"Weights | Record the manifest of the weights": BOTH} | RESTART,
}

PREFLIGHT = "Preflight refused; no node was changed.\n"
SETTINGS = "Settings refused; no node was changed.\n"
LEFT_OUT = (
    PREFLIGHT + f"  this run leaves out {A}: the nodes serve as one, so they are deployed as one.\n"
    "    Fix: run again without --limit and --exclude"
)

REFUSALS: dict[str, str] = {
    "no sudo": PREFLIGHT
    + f"  {B}: sudo wants a password from bob. It is not asked for: it would show in the node's process list\n"
    "    Fix: sudo visudo -f /etc/sudoers.d/sparkpair, with this line:\n"
    "      bob ALL=(ALL) NOPASSWD:ALL",
    "garbled": PREFLIGHT + f"  {B}: could not be looked at: the probe answered 'bash: warning: here is no probe'\n"
    "    Fix: make it answer, then run again",
    "cut short": PREFLIGHT + f"  {B}: could not be looked at: the probe's answer is damaged: Unterminated string "
    "starting at: line 1 column 25 (char 24)\n"
    "    Fix: make it answer, then run again",
    "two refusals": PREFLIGHT + f"  {B}: Docker is not installed\n"
    "    Fix: sudo apt-get install docker.io, or Docker's own packages; DGX OS brings them\n"
    f"  {A}: port 8000 (api_port) is taken by python3 (process 812)\n"
    "    Fix: end that, or state another api_port",
    "an image that nobody reaches": PREFLIGHT
    + f"  the image 192.168.77.1:5000/vllm-cpu@666666666666 is not on {A} and "
    f"{B}, and no node gets it from 192.168.77.1:5000 ({A}: No route to host; {B}: No route to host)\n"
    "    Fix: let one node reach that registry, or carry a bundle there: make bundle where there is internet, and "
    "state bundle_path (docs/operations.md#image)",
    "a restart over rails that were never measured": PREFLIGHT
    + "  the rails were never measured, and require_fabric_gate = True\n"
    f"    Fix: sudo sparkpair stop on {A}, make fabric-test, then deploy; or python fabric_test.py --while-serving",
    "a key that cannot be used": PREFLIGHT
    + f"  {A}: the API key cannot be used: /etc/sparkpair/secrets/api-key has more than one line\n"
    "    Fix: on the head: sudo rm /etc/sparkpair/secrets/api-key; deploy.py then makes one. Or write one line of your "
    "own there, at least 16\n"
    "      printable characters without blanks, as root with umask 077",
    "a key in engine_env": SETTINGS + "  engine_env: VLLM_API_KEY is what the knob require_api_key sets; use that",
    "one node only": LEFT_OUT,
    "all but one node": LEFT_OUT,
    "a limit that matches nothing": f"--limit spark-x leaves no host of {A}, {B}; no node was changed",
    "an exclude that leaves nothing": f"--exclude * leaves no host of {A}, {B}; no node was changed",
    "a mistyped inventory": "there is no inventory inventroy.py in PLACE (there: inventory.py); no node was changed",
    "a mistyped deploy file": "No deploy file: PLACE/depoly.py",
    "nobody to confirm": "nobody can confirm the plan here; add -y to carry it out, or --dry to see it",
    "a mistyped inventory, from lab/": "there is no inventory inventroy.py in PLACE (there: inventory.py); "
    "no node was changed",
    "a limit that matches nothing, from lab/": "--limit spark-a leaves no host of lab-head, lab-worker; "
    "no node was changed",
    "nobody to confirm, from lab/": "nobody can confirm the plan here; add -y to carry it out, or --dry to see it",
    "little memory will be left": PREFLIGHT
    + f"  {B}: 15.0 GiB of memory will be in use after the engine has ended (all that is in use but the engine's "
    "99.0 GiB), wanted at most 6 GiB (memory_used_max_gib): the engine's budget was proven with less, and a node "
    "that runs out wedges. Largest: ollama (process 4711) 12.0 GiB\n"
    "    Fix: end what is not needed (ps -eo rss,pid,comm --sort=-rss | head; a desktop session counts);\n"
    "      or lower what the engine takes by as much, and state memory_used_max_gib = 15",
    "unknown knob": SETTINGS + "  --data: max_len: no such knob (did you mean max_model_len? docs/knobs.md)",
    "impossible value": SETTINGS + "  group_data/all.py: max_num_seqs = 0: must be at least 1",
    "wrong type": SETTINGS + '  group_data/all.py: api_port = "http": must be a whole number, 1 to 65535, not text',
    "unknown data of a node": SETTINGS
    + f"  inventory: {B}: managment_address: no such knob (did you mean management_address? docs/knobs.md)",
    "rails in different networks": SETTINGS
    + f"  rail 0: {A} has 10.200.0.1 and {B} has 10.210.0.2; both ends of a rail must share one /24",
}

Find = Callable[[str], Outcome]


@pytest.mark.parametrize(("name", "wanted"), PLANS.items(), ids=list(PLANS))
@pytest.mark.report("SYS-01")
def test_plan(outcome: Find, name: str, wanted: dict[str, list[str]]) -> None:
    """Exactly these rows, on exactly these nodes, and none of them conditional."""
    found = outcome(name)
    assert found.code == 0, found.stderr
    assert found.rows == wanted


@pytest.mark.parametrize(("name", "wanted"), REFUSALS.items(), ids=list(REFUSALS))
def test_refusal(outcome: Find, name: str, wanted: str) -> None:
    """One message, no traceback, exit 1, and nothing planned."""
    found = outcome(name)
    assert found.code == 1
    assert found.stdout == ""
    assert found.error == wanted


LOOKED = "nobody to confirm, and nothing to"


def test_what_only_looks_asks_nobody(outcome: Find) -> None:
    """As from cron, without -y."""
    found = outcome(LOOKED)
    assert found.code == 0, found.stderr
    assert f"looked at {A}" in found.stderr
    assert "Press enter" not in found.stderr


def test_every_case_is_looked_at() -> None:
    assert {case.name for case in CASES} == {*PLANS, *REFUSALS, "a knob, shown", "a secret, shown", ALL_TOLD, LOOKED}


def test_the_order_is_that_of_the_roles(outcome: Find) -> None:
    """The same operations in the same order on every state: each is called on both nodes, and so is a barrier."""
    assert outcome("fresh").order == outcome("converged").order
    roles = list(dict.fromkeys(name.split(" | ")[0] for name in outcome("fresh").order))
    assert roles == ["Node OS", "Fabric", "Docker", "Image", "Weights", "NFS", "Upkeep", "Memory", "Engine", "Keeper"]


@pytest.mark.report("SYS-03")
def test_a_knob_shows_its_one_line(outcome: Find) -> None:
    """The whole file is shown as new here, since the pretended hosts have no files; the knob's line is in it once."""
    text = outcome("a knob, shown").stderr
    assert text.count('["--max-num-seqs", "8"]') == 2
    assert "one restart" in text


def test_a_diff_shows_no_value_of_the_operators_variables(outcome: Find) -> None:
    text = outcome("a secret, shown").stderr
    assert text.count('["HF_TOKEN", "<hidden>"]') == text.count('["A_B", "<hidden>"]') == 2
    assert text.count('["NCCL_NET", "IB"]') == 2
    assert "hf_secret" not in text
    assert "say" not in text


ALL_TOLD = "a secret that is accepted, with all that pyinfra tells"


def test_all_that_pyinfra_tells_has_no_value_of_the_operators_variables(outcome: Find) -> None:
    """The accepted launch is read back whole, and so is the installed one whose difference is shown."""
    found = outcome(ALL_TOLD)
    assert found.code == 0, found.stderr
    assert ": sparkpair-probe" in found.stderr, "the questions are shown"
    assert f"cat {objects.RANK_FILE}" in found.stderr
    assert '["HF_TOKEN", "<hidden>"]' in found.stderr
    assert "hf_secret" not in found.stderr + found.stdout


def test_a_diff_shows_that_a_hidden_value_changed() -> None:
    def lines(token: str) -> list[str]:
        return [' "env": [\n', '  ["NCCL_DEBUG", "INFO"],\n', f'  ["HF_TOKEN", "{token}"]\n', '  ["vllm", "a", "b"],\n']

    hidden = [*lines("one")[:2], '  ["HF_TOKEN", "<hidden>"]\n', lines("one")[3]]
    changed = [*hidden[:2], '  ["HF_TOKEN", "<hidden, changed>"]\n', hidden[3]]
    assert masked(lines("one"), lines("one"), {"NCCL_DEBUG"}) == (hidden, hidden)
    assert masked(lines("one"), lines("two"), {"NCCL_DEBUG"}) == (hidden, changed)
    assert masked([], lines("two"), {"NCCL_DEBUG"}) == ([], hidden)


def test_a_stopped_pair_is_said_to_be(outcome: Find) -> None:
    text = outcome("stopped on purpose, and a knob").stderr
    assert (
        f"the pair is stopped on purpose, and stays so: sudo sparkpair start on {A} starts the launch accepted before; "
        "deploy again after that for this one" in text
    )
