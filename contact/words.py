"""What first contact says and asks, and the exception by which it ends."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from typing import TextIO


class Refused(Exception):
    """First contact ends here. `lines` say where, what was seen, and what to do."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class Screen:
    """The operator's terminal, or what stands in its place: then answers are lines of the standard input."""

    def __init__(self, out: TextIO, answers: TextIO, terminal: bool) -> None:
        self._out, self._answers, self.terminal = out, answers, terminal
        self.changed: list[str] = []
        """What was done, here and on the nodes."""

    def say(self, line: str) -> None:
        """One line for the operator."""
        print(line, file=self._out, flush=True)

    def did(self, line: str) -> None:
        """The same of something that was changed."""
        self.changed.append(line)
        self.say(line)

    def confirms(self, question: str) -> bool:
        """Whether the operator says yes. Nobody is asked where there is no terminal."""
        if not self.terminal:
            return False
        print(f"{question} [yes/no] ", end="", file=self._out, flush=True)
        return self._answers.readline().strip().lower() in ("y", "yes")

    def secret(self, question: str) -> str | None:
        """A password, never shown; None where there is none."""
        if self.terminal:
            try:
                return getpass.getpass(f"{question}: ", stream=self._out) or None
            except EOFError:
                return None
        return self._answers.readline().rstrip("\r\n") or None


def screen(out: TextIO) -> Screen:
    """The screen of this process."""
    return Screen(out, sys.stdin, sys.stdin is not None and sys.stdin.isatty())
