"""The probe's raw answer about a host, from which each part is read by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from facts.tools.garbled import Garbled
from facts.unknown import Unknown

T = TypeVar("T")


class NotRead(Exception):
    """A part of the answer is not there, or is an error."""


class Answer:
    """The raw answer, of which each part is read by itself."""

    def __init__(self, raw: Mapping[str, object], document: Mapping[str, object]) -> None:
        self.raw, self.document = raw, document
        missing = raw.get("missing")
        self.missing = tuple(map(str, missing)) if isinstance(missing, list) else ()

    def part(self, read: Callable[[Answer], T]) -> T | Unknown:
        """What `read` finds, or why it found nothing."""
        try:
            return read(self)
        except (NotRead, Garbled) as error:
            return Unknown(str(error))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            return Unknown(f"the probe's answer cannot be read: {type(error).__name__}: {error}")

    def value(self, name: str) -> object:
        if name not in self.raw:
            raise NotRead(f"the probe's answer has no {name}")
        return good(self.raw[name])

    def word(self, name: str) -> str:
        return string(self.value(name))

    def rows_of(self, name: str) -> Mapping[str, object]:
        return mapping(self.value(name))

    def listed(self, name: str) -> list[object]:
        value = self.value(name)
        if not isinstance(value, list):
            raise NotRead(f"the probe's {name} is no list")
        return value

    def maybe_text(self, path: str) -> str | None:
        """A file's text; None where there is none."""
        value = good(self.rows_of("texts").get(path))
        return None if value is None else string(value)

    def text(self, path: str) -> str:
        found = self.maybe_text(path)
        if found is None:
            raise NotRead(f"there is no {path}")
        return found

    def has_run(self, name: str) -> bool:
        return name in self.rows_of("tools")

    def said(self, name: str) -> str:
        """What a tool wrote, where it ended well."""
        command = name.partition(" ")[0]
        found = self.rows_of("tools").get(name)
        if found is None:
            if command in self.missing:
                raise NotRead(f"{command} is not installed")
            raise NotRead(f"{command} was not asked")
        answer = mapping(good(found))
        if "late" in answer:
            raise NotRead(f"{name} did not answer within {answer['late']} s")
        if answer.get("code") != 0:
            lines = (string(answer["err"]) or string(answer["out"])).strip().splitlines()
            raise NotRead(f"{name} exited {answer.get('code')}: {lines[-1][:200] if lines else 'no output'}")
        return string(answer["out"])


def good(value: object) -> object:
    """Not an error of the node's side."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("error"), str):
        raise NotRead(str(value["error"]))
    return value


def mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise NotRead(f"{str(value)[:60]!r} is no object")
    return value


def string(value: object) -> str:
    if not isinstance(value, str):
        raise NotRead(f"{str(value)[:60]!r} is no text")
    return value


def whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotRead(f"{str(value)[:60]!r} is no whole number")
    return value
