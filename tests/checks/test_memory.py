"""What a deploy and verify say of a node's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checks import memory
from checks.advice import advice
from checks.preflight import refusals
from checks.verdict import Verdict
from facts.values import Holders, Memory
from node import wire
from spec import objects
from tests.plan.world import GIB, Document, World, converged, fresh, holders, programs, recorded, unit
from tests.unit import pair

EXL3 = {"weights_path": "~/models/w", "drafter_path": "~/models/d"}
HOGS: list[Document] = [
    {"pid": 4711, "command": "ollama", "container": "c" * 64, "bytes": 12 * GIB},
    {"pid": 99, "command": "gnome-shell", "container": None, "bytes": GIB},
    {"pid": 7, "command": "", "container": "d" * 64, "bytes": GIB // 2},
]
PROVEN = "the engine's budget was proven with less, and a node that runs out wedges"
END = "    Fix: end what is not needed (ps -eo rss,pid,comm --sort=-rss | head; a desktop session counts);\n"


def of_reference_stack(state: Callable[[Any], World] = fresh, **knobs: object) -> World:
    """A pair for stack vllm-exl3."""
    return state(pair.cluster({**EXL3, **knobs}))


def with_memory(world: World, available: float, who: Document | None = None) -> World:
    """The worker has so many GiB available."""
    world.worker["memory"]["MemAvailable"] = int(available * GIB)
    if who is not None:
        world.worker["holders"] = who
    return world


def told(world: World, *, starts: bool = True) -> list[str]:
    return [verdict.text() for verdict in refusals(world.cluster, world.facts(), starts=starts)]


@pytest.mark.report("MEM-05", "MEM-04")
def test_memory_in_use_is_told_before_the_engine_needs_it() -> None:
    """With the limit of the reference kit, and with what to do: as much less for the engine, which leaves a pool."""
    assert told(with_memory(of_reference_stack(), 121)) == [
        "  spark-b: 7.0 GiB of memory are in use before the engine starts, wanted at most 6 GiB (memory_used_max_gib): "
        f"{PROVEN}\n{END}"
        "      or kv_cache_memory_bytes = 13300000000 (a pool of 1,156,122 tokens), and memory_used_max_gib = 7"
    ]


@pytest.mark.report("MEM-04", "MEM-05")
def test_who_holds_it_is_named() -> None:
    """The three largest, with their containers as a person calls them."""
    world = with_memory(of_reference_stack(), 109, holders(largest=HOGS))
    world.worker["docker"]["containers"] = [{"id": "c" * 64, "names": ["open-webui"], "state": "running", "labels": {}}]
    [line] = told(world)
    assert line.startswith("  spark-b: 19.0 GiB of memory are in use before the engine starts")
    assert (
        f"{PROVEN}. Largest: ollama (process 4711, container open-webui) 12.0 GiB, gnome-shell (process 99) 1.0 GiB, "
        "a process (process 7, container dddddddddddd) 512.0 MiB\n"
    ) in line


@pytest.mark.parametrize(
    ("available", "more", "fix"),
    [
        (112, {}, "there is no smaller budget that would do: kv_cache_memory_bytes = 14400000000 less 10.0 GiB holds "
         "no request of max_model_len = 524288"),
        (100, {}, "there is no smaller budget that would do: kv_cache_memory_bytes = 14400000000 less 22.0 GiB holds "
         "no request of max_model_len = 524288"),
        (121, {"kv_cache_memory_bytes": "auto"},
         "or lower what the engine takes by as much, and state memory_used_max_gib = 7"),
        # Another way to speculate, of which the model knows no pool.
        (121.5, {"dflash_kv_ring": False}, "or kv_cache_memory_bytes = 13800000000, and memory_used_max_gib = 7"),
    ],
)  # fmt: skip
@pytest.mark.report("MEM-05")
def test_what_would_fit(available: float, more: dict[str, object], fix: str) -> None:
    """The remedy is one that holds: a budget that would hold no request is not proposed."""
    assert told(with_memory(of_reference_stack(**more), available))[0].endswith(f"{END}      {fix}")


def test_a_limit_is_stated_or_turned_off() -> None:
    assert told(with_memory(of_reference_stack(memory_used_max_gib=0), 3)) == []
    assert told(with_memory(of_reference_stack(memory_used_max_gib=8), 121)) == []


SERVING = 14.0
"""GiB available while the engine serves; 114 of 128 are in use."""


def serving(gpu: float | None, others: float = 1.0) -> World:
    """A pair that serves, whose worker's driver tells so many GiB of the engine."""
    who = holders(None if gpu is None else int(gpu * GIB), int(others * GIB), HOGS)
    return with_memory(of_reference_stack(converged), SERVING, who)


@pytest.mark.report("MEM-05")
def test_what_will_be_in_use_after_the_engine_has_ended() -> None:
    """Refused before teardown, where the plan would restart the pair; a pair that stays as it is is asked nothing."""
    [line] = told(serving(gpu=90.0))
    assert line.startswith(
        "  spark-b: 15.0 GiB of memory will be in use after the engine has ended (all that is in use but the engine's "
        f"99.0 GiB), wanted at most 6 GiB (memory_used_max_gib): {PROVEN}. Largest: ollama (process 4711, container "
    )
    assert told(serving(gpu=90.0), starts=False) == []
    assert told(serving(gpu=100.0)) == []


def test_the_others_count_whatever_the_driver_says_of_the_engine() -> None:
    """Its account may hold what the kernel counts as the engine's, too."""
    [line] = told(serving(gpu=110.0, others=9.0))
    assert "9.0 GiB of memory will be in use after the engine has ended (all other processes and the kernel), " in line


@pytest.mark.report("MEM-17")
def test_a_driver_that_tells_nothing() -> None:
    """GB10 says [N/A]: then what the others hold is what will be in use, and it is said so."""
    assert told(serving(gpu=None, others=5.0)) == []
    [line] = told(serving(gpu=None, others=7.5))
    assert (
        "7.5 GiB of memory will be in use after the engine has ended (all other processes and the kernel; the driver "
        "does not tell what the engine holds), "
    ) in line


def test_the_two_ways() -> None:
    """Shared memory and the kernel's own are in both; what the engine shares goes with it."""
    seen = Memory(total=128 * GIB, available=14 * GIB, swap=0, shmem=3 * GIB, kernel=GIB)
    who = Holders(processes=5, engine=8 * GIB, engine_shmem=GIB, engine_gpu=None, others=2 * GIB, largest=())
    assert memory.after_exit(seen, who)[0] == (2 + 2 + 1) * GIB
    told_of = Holders(processes=5, engine=8 * GIB, engine_shmem=GIB, engine_gpu=99 * GIB, others=2 * GIB, largest=())
    assert memory.after_exit(seen, told_of)[0] == 6 * GIB


def test_a_rank_that_ended_holds_nothing() -> None:
    ended = serving(gpu=90.0)
    ended.worker["docker"]["containers"][0]["state"] = "exited"
    [line] = told(ended)
    assert "114.0 GiB of memory are in use before the engine starts" in line


@pytest.mark.parametrize("part", ["docker", "containers"])
def test_memory_is_not_judged_where_docker_does_not_say_whose_it_is(part: str) -> None:
    """A rank of ours may hold it; what is told is that Docker did not answer."""
    world = serving(gpu=90.0)
    place = world.worker if part == "docker" else world.worker["docker"]
    place[part] = {"error": "it hangs"}
    lines = "\n".join(told(world))
    assert "it hangs" in lines
    assert "of memory" not in lines


def test_unknown_is_not_enough() -> None:
    """Neither of the memory, nor of who holds it where that matters."""
    fix = "\n    Fix: make that answer, then run again"
    world = of_reference_stack()
    world.worker["memory"] = {"error": "it broke"}
    assert told(world) == [f"  spark-b: its memory could not be read: it broke{fix}"]
    world = with_memory(of_reference_stack(converged), SERVING, {"error": "it broke"})
    assert told(world) == [f"  spark-b: who holds its memory could not be read: it broke{fix}"]
    assert told(world, starts=False) == []
    assert told(with_memory(of_reference_stack(), 125, {"error": "it broke"})) == []


SWAP = (
    '  {}: 16.0 GiB of swap, and load_format is "": weights read through the page cache need 30.0 GiB, or the node '
    "dies near 90% of the load\n"
    "    Fix: leave load_format out (instanttensor reads past the page cache), or give the node more swap"
)


@pytest.mark.report("MEM-06")
def test_a_load_through_the_page_cache_needs_swap() -> None:
    """R5, on every node; another loader, and another stack, need none."""
    assert told(of_reference_stack(load_format="")) == [SWAP.format("spark-a"), SWAP.format("spark-b")]
    named = SWAP.replace('""', '"auto"')  # the engine's own word for what empty leaves it at
    assert told(of_reference_stack(load_format="auto")) == [named.format("spark-a"), named.format("spark-b")]
    more = of_reference_stack(load_format="")
    more.worker["memory"]["SwapTotal"] = 32 * GIB
    assert told(more) == [SWAP.format("spark-a")]
    assert told(of_reference_stack()) == []
    assert told(fresh(pair.cluster({**pair.UPSTREAM, "load_format": ""}))) == []


def test_swap_is_asked_for_while_the_pair_serves() -> None:
    """Before the pair is touched, as everything in preflight is."""
    world = of_reference_stack(converged, load_format="")
    assert told(world) == [SWAP.format("spark-a"), SWAP.format("spark-b")]


# For verify


def watched(world: World) -> list[Verdict]:
    """What is stated of the worker."""
    node = world.cluster.workers[0]
    return list(memory.watched(world.cluster, node, world.facts()[node.name], wire.programs_hash(programs())))


def statements(world: World) -> list[tuple[bool | None, str]]:
    return [(verdict.holds, verdict.statement) for verdict in watched(world)]


PROTECTED = (True, "login sessions and sshd keep memory of their own")


@pytest.mark.report("MEM-14")
def test_a_watched_node_says_how_much_there_is() -> None:
    world = converged(pair.cluster())
    line = "memory is recorded: 12.0 GiB available"
    assert statements(world) == [(True, f"{line}, 11.0 GiB or more since its rank was started"), PROTECTED]
    word = recorded(wire.programs_hash(programs()))
    world.worker["documents"]["/run/sparkpair/memory.json"] = {"json": {**word, "running": False}}
    assert statements(world)[0] == (True, line)


@pytest.mark.parametrize(
    ("word", "holds", "statement"),
    [
        (None, False, "sparkpair-recorder.service says nothing"),
        ({"json": recorded("old")}, False, "sparkpair-recorder.service runs other programs than those installed"),
        ({"json": {}}, None, "what its recorder says could not be read: "),
        ({"error": "/run/sparkpair/memory.json is damaged"}, None, "what its recorder says could not be read: "),
    ],
)
def test_a_recorder_that_does_not_watch(word: object, holds: bool | None, statement: str) -> None:
    world = converged(pair.cluster())
    world.worker["documents"]["/run/sparkpair/memory.json"] = word
    found = statements(world)
    assert found[0][0] is holds
    assert found[0][1].startswith(statement)
    assert found[1] == PROTECTED


@pytest.mark.report("MEM-10")
def test_protection_that_systemd_has_not_read() -> None:
    world = converged(pair.cluster())
    world.worker["units"]["user.slice"]["NeedDaemonReload"] = "yes"
    assert statements(world)[1] == (False, "systemd has other settings of user.slice than the files say")


def test_protection_that_is_not_wanted_any_more() -> None:
    """Nothing is stated where there is none, and none is wanted."""
    settled = converged(pair.cluster()).worker["files"][objects.protection("ssh.service")]
    world = converged(pair.cluster({**pair.UPSTREAM, "protect_login": False}))
    assert len(statements(world)) == 1
    world.worker["files"][objects.protection("ssh.service")] = settled
    assert statements(world)[1] == (False, "ssh.service: still protected, and protect_login is False")


# Other guards


def advised(world: World) -> list[str]:
    return [line for line in advice(world.cluster, world.facts()) if "ends" in line]


@pytest.mark.report("MEM-13")
def test_other_guards_are_told() -> None:
    """MEM-13: with what each may end. They are left as they are."""
    world = converged(pair.cluster())
    assert advised(world) == []
    for name in ("earlyoom.service", "systemd-oomd.service", "dgx-anti-oom.service"):
        world.worker["units"][name] = unit()
    world.worker["texts"]["/etc/default/earlyoom"] = "# comment\nEARLYOOM_ARGS=\"-m 4 --prefer '(^|/)(vllm|VLLM)'\"\n"
    assert told(world) == []
    assert [line.partition(",")[0] for line in advised(world)] == [
        "spark-b: earlyoom.service is active: it ends the process that the kernel would end first",
        "spark-b: systemd-oomd.service is active: it ends a whole cgroup",
        "spark-b: dgx-anti-oom.service is active: it ends processes by rules of its own",
    ]
    assert "set to: -m 4 --prefer '(^|/)(vllm|VLLM)'" in advised(world)[0]
    world.worker["units"]["earlyoom.service"] = unit("inactive")
    assert len(advised(world)) == 2
