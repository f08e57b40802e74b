"""Who else uses a node's GPU and screen."""

from __future__ import annotations

from collections.abc import Iterator

from checks.check import DOCTOR_ALONE, Check, Sight, When
from checks.look import at_start, look
from checks.verdict import Verdict, holds, told
from facts.host import GpuApp
from facts.values import Container, NodeFacts, Unknown

SHOWN = 3
PREFLIGHT_ALONE = frozenset({When.PREFLIGHT})


def desktop(sight: Sight) -> Iterator[Verdict]:
    """MEM-16: a graphical session takes memory of the engine's, and freezes while the GPU is busy."""
    found, unread = look(sight, "its sessions", lambda seen: seen.host.session)
    yield from unread
    for name, (_, session) in found.items():
        if not session.graphical:
            yield holds(name, "no desktop session")
            continue
        commands = list(dict.fromkeys(command for _, command in session.graphical))
        more = f" and {len(commands) - SHOWN} more" if len(commands) > SHOWN else ""
        boots = ", also after a reboot" if session.default_target == "graphical.target" else ""
        yield told(
            name,
            f"a desktop session runs{boots} ({', '.join(commands[:SHOWN])}{more}): it shares memory and GPU with the "
            "engine, and was seen to freeze under load",
            "if nobody sits there: sudo systemctl set-default multi-user.target && sudo systemctl isolate "
            "multi-user.target, which ends the session;\nback: the same with graphical.target",
        )


def gpu(sight: Sight) -> Iterator[Verdict]:
    """Programs on the GPU that are not ours. Told: what they take is memory of the node, and memory_used_max_gib
    refuses by that, whoever holds it; a small one does no harm."""
    found, unread = look(sight, "who uses the GPU", lambda seen: seen.host.gpu_apps)
    yield from unread
    for name, (seen, apps) in found.items():
        others = [app for app in apps if not _is_ours(seen, app)]
        if others:
            yield told(
                name,
                f"others use the GPU: {', '.join(_said(seen, app) for app in others)}",
                "end them, or expect the pair to be slower beside them; one that grows later takes the engine's memory",
            )
        else:
            yield holds(name, "nobody else uses the GPU")


def _is_ours(seen: NodeFacts, app: GpuApp) -> bool:
    found = _container(seen, app)
    return found is not None and found.is_ours


def _container(seen: NodeFacts, app: GpuApp) -> Container | None:
    if app.container is None or isinstance(seen.docker, Unknown) or isinstance(seen.docker.containers, Unknown):
        return None
    return next((one for one in seen.docker.containers if one.id.startswith(app.container)), None)


def _said(seen: NodeFacts, app: GpuApp) -> str:
    found = _container(seen, app)
    place = f", container {found.names[0]}" if found is not None and found.names else ""
    size = "" if app.mib is None else f" with {app.mib} MiB"
    return f"{app.command or 'a process'} (process {app.pid}{place}){size}"


CHECKS = (
    Check("sessions.desktop", "Does a desktop session run?", desktop, DOCTOR_ALONE, ("MEM-16",)),
    Check("sessions.gpu", "Does anybody else use the GPU?", gpu, DOCTOR_ALONE, ("MEM-04", "MEM-05")),
    Check(
        "sessions.desktop-at-start",
        "Does a desktop session run beside the pair that is started?",
        at_start(desktop),
        PREFLIGHT_ALONE,
        ("MEM-16",),
    ),
    Check(
        "sessions.gpu-at-start",
        "Does anybody else use the GPU of the pair that is started?",
        at_start(gpu),
        PREFLIGHT_ALONE,
        ("MEM-04", "MEM-05"),
    ),
)
