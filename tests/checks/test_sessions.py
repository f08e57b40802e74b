"""Who else uses a node's GPU and screen."""

from __future__ import annotations

import pytest

from checks import sessions
from checks.advice import advice
from checks.check import When, run
from checks.preflight import refusals
from facts.host import GpuApp, Session
from facts.values import Unknown
from tests.checks.sights import HEAD, WORKER, sight, sound, statements
from tests.checks.sights import said as told_of
from tests.plan.world import World

DESKTOP = Session("graphical.target", ((1800, "gnome-shell"), (1700, "Xorg"), (1810, "gnome-shell")))


@pytest.mark.report("MEM-16")
def test_a_desktop_session_is_told_with_the_way_out_and_back() -> None:
    """It is somebody's, so nobody ends it for him."""
    assert told_of(sessions.desktop(sight(worker=sound(session=DESKTOP)))) == [
        f"told  {WORKER}: a desktop session runs, also after a reboot (gnome-shell, Xorg): it shares memory and GPU "
        "with the engine, and was seen to freeze under load\n"
        "    Fix: if nobody sits there: sudo systemctl set-default multi-user.target && sudo systemctl isolate "
        "multi-user.target, which ends the session;\n"
        "      back: the same with graphical.target"
    ]
    once = Session("multi-user.target", tuple((1000 + number, f"p{number}") for number in range(5)))
    [found] = told_of(sessions.desktop(sight(worker=sound(session=once))))
    assert found.startswith(f"told  {WORKER}: a desktop session runs (p0, p1, p2 and 2 more): it shares")


@pytest.mark.report("MEM-04", "MEM-05")
def test_other_programs_on_the_gpu_are_told_by_name() -> None:
    """Ours are not among them; a container by its name, where it has one."""

    def with_others(world: World) -> None:
        world.worker["docker"]["containers"].append(
            {"id": "f" * 64, "names": ["ollama"], "state": "running", "labels": {}}
        )

    apps = (
        GpuApp(4000, "VLLM::Worker_TP1", 90000, "1" * 64),
        GpuApp(4100, "/usr/bin/ollama", 12000, "f" * 64),
        GpuApp(4200, "", None, None),
        GpuApp(4300, "python", 512, "e" * 64),
    )
    assert told_of(sessions.gpu(sight(worker=sound(gpu_apps=apps), change=with_others))) == [
        f"told  {WORKER}: others use the GPU: /usr/bin/ollama (process 4100, container ollama) with 12000 MiB, a "
        "process (process 4200), python (process 4300) with 512 MiB\n"
        "    Fix: end them, or expect the pair to be slower beside them; one that grows later takes the engine's memory"
    ]
    assert statements(sessions.gpu(sight())) == [f"{name}: nobody else uses the GPU" for name in (HEAD, WORKER)]
    silent = {"error": "no"}
    seen = sight(worker=sound(gpu_apps=apps[:1]), change=lambda world: world.worker.update(docker=silent))
    assert "VLLM::Worker_TP1 (process 4000) with 90000 MiB" in told_of(sessions.gpu(seen))[0]


@pytest.mark.report("MEM-16")
def test_a_deploy_tells_it_where_it_starts_the_pair() -> None:
    """A pair that serves has proven that it fits beside them; doctor says it in any case."""
    seen = sight(worker=sound(session=DESKTOP, gpu_apps=(GpuApp(1, "x", 1, None),)))
    assert refusals(seen.cluster, seen.facts) == []
    assert [line for line in advice(seen.cluster, seen.facts) if "desktop session" in line or "use the GPU" in line]
    assert not advice(seen.cluster, seen.facts, starts=False)
    quiet = sight(worker=sound(session=DESKTOP), starts=False)
    assert [one.told for _, one in run(sessions.CHECKS, When.DOCTOR, quiet)].count(True) == 1


def test_what_cannot_be_read_is_unknown() -> None:
    """And refuses nothing."""
    seen = sight(worker=sound(session=Unknown("ps: no"), gpu_apps=Unknown("nvidia-smi: no answer")))
    found = [one.text().split("\n")[0] for _, one in run(sessions.CHECKS, When.DOCTOR, seen) if one.holds is None]
    assert found == [
        f"  {WORKER}: its sessions could not be read: ps: no",
        f"  {WORKER}: who uses the GPU could not be read: nvidia-smi: no answer",
    ]
    assert refusals(seen.cluster, seen.facts) == []
