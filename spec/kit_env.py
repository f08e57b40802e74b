"""Reads the settings files of the reference kit, which are shell, without running anything.

The kit v2.3-tier1 sources its `.env`, and its launcher sources `~/.glm53-serve.env` on each node, which says
`: "${VAR:=value}"` (takes the value where VAR is unset or empty) and `: "${VAR=value}"` (only where it is unset).
What is read here has the value that bash would give it; whatever would need a shell to know is refused, by line, with
what to write instead.

One exception: a leading `~/`, `$HOME/` or `${HOME}/` becomes `~/`, the home on the node.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

LARGEST = 1_000_000
"""Bytes; the kit's own example has about 6,000."""


class Form(Enum):
    """How a line sets its variable."""

    SET = "KEY=value"
    IF_EMPTY = ': "${KEY:=value}"'
    IF_UNSET = ': "${KEY=value}"'


@dataclass(frozen=True)
class Line:
    """One setting, as its line states it."""

    number: int
    key: str
    value: str
    form: Form = Form.SET


@dataclass(frozen=True)
class Refusal:
    """What cannot be taken. `number` 0: the file as a whole."""

    number: int
    text: str


@dataclass(frozen=True)
class KitFile:
    """A settings file, read. With refusals, `lines` holds only what could be understood."""

    name: str
    lines: tuple[Line, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def values(self) -> dict[str, Line]:
        """What each variable holds at the end, in the order of the lines that say so."""
        held: dict[str, Line] = {}
        for line in self.lines:
            before = held.get(line.key)
            keeps = before is not None and (line.form is Form.IF_UNSET or (line.form is Form.IF_EMPTY and before.value))
            if not keeps:
                held.pop(line.key, None)
                held[line.key] = line
        return held

    @property
    def repeated(self) -> dict[str, tuple[int, ...]]:
        """The lines of each variable that is set more than once."""
        found: dict[str, list[int]] = {}
        for line in self.lines:
            found.setdefault(line.key, []).append(line.number)
        return {key: tuple(numbers) for key, numbers in found.items() if len(numbers) > 1}

    @property
    def is_of_a_node(self) -> bool:
        """Whether this is a node's file, as the launcher reads it, and not the `.env` of the installer."""
        keys = {line.key for line in self.lines}
        own = keys & {"NCCL_IF", "NCCL_HCA"}
        both = keys & {"HEAD_NCCL_IF", "HEAD_NCCL_HCA", "WORKER_NCCL_IF", "WORKER_NCCL_HCA", "WORKER_LAN_IP"}
        return any(line.form is not Form.SET for line in self.lines) or bool(own and not both)


def read(path: Path) -> KitFile:
    """The file's settings. Whatever is wrong with the file itself is a refusal too."""
    name = str(path) if "\n" not in str(path) else repr(str(path))  # a line says one thing
    try:
        # Asked first: a pipe or a device could be waited for without end.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "is a directory" if stat.S_ISDIR(status.st_mode) else "is no regular file"
            return _refused(name, f"{what}; name the kit's .env, or a node's ~/.glm53-serve.env")
        if status.st_size > LARGEST:
            return _refused(name, f"has {status.st_size} bytes; a settings file of the kit has at most {LARGEST}")
        data = path.read_bytes()
    except FileNotFoundError:
        return _refused(name, "no such file; name the kit's .env, or a node's ~/.glm53-serve.env")
    except (OSError, ValueError) as error:
        return _refused(name, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        return KitFile(name, refusals=(Refusal(number, "is not text in UTF-8; save the file as UTF-8"),))
    return parse(text, name)


def _refused(name: str, text: str) -> KitFile:
    return KitFile(name, refusals=(Refusal(0, text),))


def parse(text: str, name: str = ".env") -> KitFile:
    """The settings in a text. Raises nothing: what cannot be taken is among the refusals."""
    reader = _Reader(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    reader.read()
    return KitFile(name, tuple(reader.lines), tuple(reader.refusals))


class _Stop(Exception):
    """The rest of this line is not read."""


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_QUOTE_IT = "has a meaning in the shell; put the value in single quotes"
_UNQUOTED = {
    ";": "; starts another command; write one setting per line",
    "&": f"& {_QUOTE_IT}",
    "|": f"| {_QUOTE_IT}",
    "<": f"< {_QUOTE_IT}",
    ">": f"> {_QUOTE_IT}",
    "(": f"( {_QUOTE_IT}",
    ")": f") {_QUOTE_IT}",
    "*": f"* {_QUOTE_IT}",
    "?": f"? {_QUOTE_IT}",
    "[": f"[ {_QUOTE_IT}",
    "{": f"{{ {_QUOTE_IT}",
    "}": f"}} {_QUOTE_IT}",
}


@dataclass
class _Reader:
    """Goes through the text once; after a refusal it goes on with the next line, so that all are found."""

    text: str
    at: int = 0
    number: int = 1
    lines: list[Line] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def read(self) -> None:
        while self.at < len(self.text):
            first, kept = self.number, len(self.lines)
            try:
                self._statement()
            except _Stop as stop:
                del self.lines[kept:]
                self.refusals.append(Refusal(first, str(stop)))
                self._to_the_end_of_the_line()
                while self.text[: self.at].endswith("\\") and self._take("\n"):
                    self._to_the_end_of_the_line()
            self._take("\n")

    # What stands where

    def _next(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def _take(self, text: str) -> bool:
        if self._next(len(text)) != text:
            return False
        self.at += len(text)
        self.number += text.count("\n")
        return True

    def _name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def _blanks(self) -> bool:
        """Past blanks, a line that goes on included; whether there were any."""
        before = self.at
        while self._take(" ") or self._take("\t") or self._take("\\\n"):
            pass
        return self.at > before

    def _at_the_end(self) -> bool:
        return self._next() in ("", "\n")

    def _to_the_end_of_the_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _word_shown(self) -> str:
        found = re.compile(r"[^\s;&|#]{1,40}").match(self.text, self.at)
        word = found.group() if found else self._next()
        self._refuse_control(word)
        return "".join(sign if sign.isprintable() else "?" for sign in word)

    # The lines

    def _statement(self) -> None:
        self._blanks()
        if self._at_the_end():
            return
        if self._next() == "#":
            self._to_the_end_of_the_line()
            return
        if self._next() == ":" and (self._next(2)[1:] in (" ", "\t")):
            self.at += 1
            self._arguments(self._default)
            return
        before = self.at
        if self._name() == "export" and self._next() in (" ", "\t"):
            if not self._arguments(self._exported):
                raise _Stop("export alone would print variables; write export KEY=value, or KEY=value")
            return
        self.at = before
        self._assignment()
        self._arguments(self._assignment)

    def _arguments(self, one: Callable[[], None]) -> int:
        """What follows on the line, up to its end or a comment; how many there were."""
        count = 0
        while True:
            blanks = self._blanks()
            if self._at_the_end():
                return count
            if blanks and self._next() == "#":
                self._to_the_end_of_the_line()
                return count
            if not blanks:
                raise _Stop(self._foreign(self._next()))
            one()
            count += 1

    def _exported(self) -> None:
        before = self.at
        name = self._name()
        if name and self._next() in ("", "\n", " ", "\t"):
            return  # export KEY: the variable goes to what is started from here, its value stays
        self.at = before
        self._assignment()

    def _assignment(self) -> None:
        number, before = self.number, self.at
        key = self._name()
        if not key:
            raise _Stop(f"{self._word_shown()} is no setting; write KEY=value, or # before a remark")
        if self._next(2) == "+=":
            raise _Stop(f"{key}+= adds to what stands already; write the whole value: {key}=...")
        if not self._take("="):
            self.at = before
            raise _Stop(self._no_assignment(key))
        if key == "HOME":
            raise _Stop("HOME is the home on each node here; write the paths below without it")
        if self._next() == "(":
            raise _Stop(f"{key}=(...) is a list, which no setting of the kit is; write {key}=value")
        self.lines.append(Line(number, key, self._value()))

    def _no_assignment(self, key: str) -> str:
        after = self.text[self.at + len(key) :].split("\n", 1)[0]
        if re.match(r"[ \t]+=", after):
            return f"{key} and = stand apart, which the shell takes for a command; write {key}=value without blanks"
        if self.lines and self.lines[-1].number == self.number and (stated := self.lines[-1]):
            hint = f'{stated.key}="{stated.value} {self._word_shown()}"' if stated.value else f"{stated.key}={key}"
            return f"{self._word_shown()} would be run as a command; write {hint}"
        return f"{self._word_shown()} would be run as a command; write KEY=value, or # before a remark"

    def _default(self) -> None:
        """`"${KEY:=value}"` or `"${KEY=value}"`, also without the quotes."""
        number, shown = self.number, self._word_shown()
        quoted = self._take('"')
        if not self._take("${"):
            raise _Stop(f'{self._word_shown()} after a colon sets nothing; write : "${{KEY:=value}}", or KEY=value')
        key = self._name()
        form = Form.IF_EMPTY if self._take(":=") else Form.IF_UNSET if self._take("=") else None
        if not key or form is None:
            name = key or "KEY"
            raise _Stop(f'{shown} is an expression; write : "${{{name}:=value}}", or {name}=value')
        home = next((prefix for prefix in ("$HOME/", "${HOME}/", "~/") if self._take(prefix)), "")
        found = re.compile(r"[^}\n]*").match(self.text, self.at)
        rest = found.group() if found else ""
        if self.text[self.at + len(rest) : self.at + len(rest) + 1] != "}":
            raise _Stop(f'${{{key} is not closed on its line; write : "${{{key}:=value}}"')
        for sign in "$`\"'\\" if quoted else "$`\"'\\~*?[{;&|<>()":
            if sign in rest:
                raise _Stop(f"{sign} in the value of {key} {_QUOTE_IT}: {key}='...'")
        self._refuse_control(rest)
        if not quoted and re.search(r"[ \t]", rest):
            raise _Stop(f'blanks in the value of {key}; write : "${{{key}:=...}}" with double quotes')
        self.at += len(rest)
        if not self._take("}") or (quoted and not self._take('"')):
            raise _Stop(f'${{{key} is not closed on its line; write : "${{{key}:=value}}"')
        self.lines.append(Line(number, key, f"~/{rest}" if home else rest, form))

    # The values

    def _value(self) -> str:
        parts: list[str] = []
        home = self._home_by_tilde()
        while not self._at_the_end() and self._next() not in (" ", "\t"):
            if self._take("'"):
                parts.append(self._up_to_the_quote())
            elif self._take('"'):
                home = self._double_quoted(parts, home)
            elif self._take("\\\n"):
                pass
            elif self._take("\\"):
                parts.append(self._escaped())
            elif self._next() == "$":
                home = self._dollar(parts, home, unquoted=True)
            elif self._next() == "~" and ((not home and not parts) or "".join(parts).endswith(":")):
                raise _Stop("~ stands for a home here; write the whole path, or ~/ at its start")
            elif self._next() in _UNQUOTED or self._next() == "`":
                raise _Stop(self._foreign(self._next()))
            else:
                parts.append(self._plain())
        value = "".join(parts)
        if home and not value.startswith("/"):
            raise _Stop("a home is taken only as the start of a path, such as $HOME/models")
        return f"~{value}" if home else value

    def _home_by_tilde(self) -> bool:
        if self._next(2) == "~/":
            self.at += 1
            return True
        return False

    def _plain(self) -> str:
        sign = self._next()
        self._refuse_control(sign)
        self.at += 1
        return sign

    def _escaped(self) -> str:
        if self._at_the_end():
            return "\\"
        return self._plain()

    def _up_to_the_quote(self) -> str:
        end = re.compile(r"['\n]").search(self.text, self.at)
        if end is None or end.group() != "'":
            raise _Stop("' is not closed on its line; close it, or write the value without quotes")
        found = self.text[self.at : end.start()]
        self._refuse_control(found)
        self.at = end.end()
        return found

    def _double_quoted(self, parts: list[str], home: bool) -> bool:
        while not self._take('"'):
            if self._at_the_end():
                raise _Stop('" is not closed on its line; close it, or write the value without quotes')
            if self._take("\\\n"):
                continue
            if self._next() == "\\" and self._next(2)[1:] in ("$", "`", '"', "\\"):
                self.at += 1
                parts.append(self._plain())
            elif self._next() == "$":
                home = self._dollar(parts, home, unquoted=False)
            elif self._next() == "`":
                raise _Stop(self._foreign("`"))
            else:
                parts.append(self._plain())
        return home

    def _dollar(self, parts: list[str], home: bool, *, unquoted: bool) -> bool:
        """A `$`: the home at the start of a path, a plain sign where nothing follows that the shell knows, or an
        expression."""
        ahead = self.text[self.at + 1 : self.at + 2]
        found = re.compile(r"\$(?:HOME(?![A-Za-z0-9_])|\{HOME\})").match(self.text, self.at)
        if found is not None and not home and not "".join(parts):
            self.at = found.end()
            return True
        # A backslash: the line may go on with the name.
        expression = re.fullmatch(r"[A-Za-z0-9_@*#?$!({\[\\-]", ahead) or (unquoted and ahead in ("'", '"'))
        if ahead and expression:
            raise _Stop(self._expression())
        parts.append("$")
        self.at += 1
        return home

    def _expression(self) -> str:
        rest = self.text[self.at :].split("\n", 1)[0]
        if rest.startswith("$(("):
            return "$((...)) is a calculation; write the number that it gives"
        if rest.startswith("$("):
            return "$(...) would run a command; write what it gives"
        if rest.startswith("${"):
            return f"{rest.split('}', 1)[0][:40]}{'}' if '}' in rest[:41] else '...'} is an expression; write its value"
        if rest.startswith(("$'", '$"')):
            return f"{rest[:2]}...{rest[1]} is an expression; write {rest[1]}...{rest[1]} without the $"
        found = re.match(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|.)", rest)
        return f"{found.group() if found else '$'} is another variable; write its value, or put it in single quotes"

    def _foreign(self, sign: str) -> str:
        if sign == "`":
            return "`...` would run a command; write what it gives"
        return _UNQUOTED.get(sign, f"{sign} {_QUOTE_IT}")

    def _refuse_control(self, text: str) -> None:
        found = _CONTROL.search(text)
        if found:
            raise _Stop(f"holds a control character (U+{ord(found.group()):04X}); write the line anew")


def shown_lines(numbers: tuple[int, ...]) -> str:
    """Line numbers in words."""
    words = [str(number) for number in numbers]
    return f"lines {', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else f"line {words[0]}"


def refusal_lines(file: KitFile) -> Iterator[str]:
    """Each refusal of the file on a line of its own, with its place."""
    for refusal in file.refusals:
        place = f"{file.name}:{refusal.number}" if refusal.number else file.name
        yield f"{place}: {refusal.text}"
