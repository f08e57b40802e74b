"""Whether a server is reached, and which Python is there: the facts' own programs, on this computer."""

from __future__ import annotations

import socket
import subprocess
import sys

from facts.reach import Interpreter, NodePython, Reach
from facts.values import Unknown


def test_what_keeps_a_node_from_a_server_is_said() -> None:
    """In one answer for all of them: one that listens, one that does not, one that has no name."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closed:
        near, gone = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (listening, closed))
        closed.close()
        urls = [near, f"{near}/with/a/path", gone, "https://hub.invalid"]
        command = Reach().command(urls)
        done = subprocess.run(["/bin/sh", "-c", str(command)], capture_output=True, text=True, check=False)
    found = Reach().process(["Welcome", *done.stdout.splitlines()])
    assert not isinstance(found, Unknown)
    assert {url: found[url] for url in urls[:3]} == {near: "", f"{near}/with/a/path": "", gone: "Connection refused"}
    assert found["https://hub.invalid"].startswith(("its name is not known here", "no answer within"))


def test_an_answer_that_is_none_is_unknown() -> None:
    """Which is not the same as no way."""
    assert Reach().process(["sudo: no"]) == Unknown("it answered 'sudo: no'")
    assert Reach().process(["{"]) == Unknown("it answered '{'")
    assert Reach.default() == Unknown("it did not answer")


def test_the_python_is_asked_for_itself() -> None:
    """By what wheels are named for."""
    command = str(NodePython().command()).replace("/usr/bin/python3", sys.executable)
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    found = NodePython().process(done.stdout.splitlines())
    assert isinstance(found, Interpreter)
    assert found.python == sys.version_info[:2]
    assert NodePython().process(['["aarch64", "2.39", [3, 12]]']) == Interpreter("aarch64", "2.39", (3, 12))
    assert NodePython().process(["[]"]) == Unknown("it answered '[]'")
