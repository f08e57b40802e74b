"""The list of what is on a node is complete as far as the programs and texts tell, and consistent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node import paths
from spec import objects, render
from spec.objects import OBJECTS, Object, Sort, Where

BY_PATH = {item.path: item for item in OBJECTS}


def test_paths_are_there_once() -> None:
    """No object is declared twice."""
    assert len(BY_PATH) == len(OBJECTS)


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.path)
def test_an_object_is_complete(item: Object) -> None:
    """Files have an owner and an octal mode; everything has a reason."""
    if item.sort in (Sort.FILE, Sort.DIRECTORY, Sort.SOCKET, Sort.UNIT):
        assert re.fullmatch(r"0[0-7]{3}", item.mode)
        assert item.owner
    if item.sort is Sort.UNIT:
        assert item.enabled_by
    assert item.why.endswith(".")
    assert item.made_by


def _program_paths() -> list[Path]:
    return [value for name, value in vars(paths).items() if name.isupper() and isinstance(value, Path)]


@pytest.mark.parametrize("path", _program_paths(), ids=str)
def test_what_the_programs_write_is_listed(path: Path) -> None:
    """Each place that node/paths.py names is an object, or the directory of one, or systemd's."""
    if str(path).startswith("/sys/"):
        assert path.name == objects.CGROUP_PARENT
        return
    listed = [item.path for item in OBJECTS]
    assert str(path) in listed or any(item.startswith(f"{path}/") for item in listed)


def test_names_agree_with_the_programs() -> None:
    """spec/ and node/ cannot share constants (node/ imports nothing), so this holds them together."""
    assert str(paths.WANTED_RANK) == objects.RANK_FILE
    assert str(paths.WANTED_SERVICE) == objects.SERVICE_FILE
    assert str(paths.KEEPER_KEY) == objects.KEY_FILE
    assert str(paths.KEEPER_KNOWN_HOSTS) == objects.KNOWN_HOSTS
    assert objects.USER == paths.PEER_USER
    assert objects.CGROUP_PARENT == paths.ENGINE_SLICE
    assert str(paths.PROGRAMS) == objects.LIB


@pytest.mark.report("SYS-04")
def test_every_unit_is_the_systems() -> None:
    """None ends with a session."""
    units = [item.path for item in OBJECTS if item.sort is Sort.UNIT]
    assert units
    assert [path for path in units if not path.startswith(f"{objects.UNIT_DIRECTORY}/")] == []
    assert objects.UNIT_DIRECTORY == "/etc/systemd/system"


def test_units_are_listed_and_name_what_is_listed() -> None:
    """The unit files that are rendered are the ones in the list, and start a program that is."""
    units = {Path(item.path).name for item in OBJECTS if item.sort is Sort.UNIT}
    assert units == {*render.UNITS, *render.UPKEEP_UNITS, objects.RECORDER_UNIT, objects.MOUNT_UNIT}
    for name in render.UNITS:
        assert f"ExecStart=/usr/bin/python3 -sEB {objects.MAIN} " in render.unit_text(name)
    assert objects.MAIN in BY_PATH


def test_where_holds() -> None:
    """Which node has what."""
    assert [Where.EVERY.holds(is_head) for is_head in (True, False)] == [True, True]
    assert [Where.HEAD.holds(is_head) for is_head in (True, False)] == [True, False]
    assert [Where.WORKERS.holds(is_head) for is_head in (True, False)] == [False, True]


def test_a_parent_of_ours_is_listed() -> None:
    """A file below a directory of ours has that directory in the list, so that removal leaves nothing behind."""
    ours = (objects.ETC, objects.VAR, objects.RUN, objects.LIB)
    for item in OBJECTS:
        parent = str(Path(item.path).parent)
        if item.path.startswith(tuple(f"{root}/" for root in ours)) and parent not in BY_PATH:
            pytest.fail(f"{item.path}: {parent} is not listed")
