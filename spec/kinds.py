"""What a knob may hold: one parser, one wording of "allowed" and one refusal per kind of value.

pyinfra converts what `--data` carries (whole numbers, true/false, JSON; else text), so a value may arrive in a form
that the operator did not type. Each kind takes exactly the forms that lose nothing and refuses the rest.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Literal

Empty = Literal[""]
"""The third state of a knob: neither unset nor a value, the engine's own default (the flag is left out)."""

EMPTY: Empty = ""

Value = bool | int | float | str | tuple[str, ...]


class Refused(ValueError):
    """A value that a knob cannot hold; the text says what it must be."""


def shown(value: object) -> str:
    """The value as an operator would type it, on one line and not too long; without a password that an address has."""
    try:
        text = json.dumps(value) if isinstance(value, str) else repr(value)
    except Exception:  # thousands of digits, or an object that cannot say what it is
        text = f"<{type(value).__name__}>"
    text = re.sub(r"://[^/\s]*@", "://...@", text.replace("\n", " "))
    return text if len(text) <= 80 else text[:77] + "..."


def _type_name(value: object) -> str:
    names = {bool: "true/false", int: "a whole number", float: "a number", str: "text", dict: "a table", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")


@dataclass(frozen=True)
class Kind:
    """One kind of value."""

    def parse(self, value: object) -> Value:
        raise NotImplementedError

    @property
    def allowed(self) -> str:
        """The values allowed, in words, as docs/knobs.md and the refusals say them."""
        raise NotImplementedError


def _bounds(low: float | None, high: float | None, above: float | None = None) -> str:
    if low is not None and high is not None:
        return f"{low} to {high}"
    parts = []
    if above is not None:
        parts.append(f"above {above}")
    if low is not None:
        parts.append(f"at least {low}")
    if high is not None:
        parts.append(f"at most {high}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number. 1e5 arrives from --data as 100000.0 and is taken; 1.5, "4" and true are not."""

    low: int
    high: int

    def parse(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(f"must be a whole number, {self.low} to {self.high}, not {_type_name(value)}")
        if isinstance(value, float):
            if not math.isfinite(value) or not value.is_integer():
                raise Refused(f"must be a whole number, {self.low} to {self.high}")
            value = int(value)
        if value < self.low:
            raise Refused(f"must be at least {self.low}")
        if value > self.high:
            raise Refused(f"must be at most {self.high}")
        return value

    @property
    def allowed(self) -> str:
        return f"whole number, {self.low} to {self.high}"


@dataclass(frozen=True)
class Number(Kind):
    """A finite number; `above` excludes its bound, `low` and `high` include theirs."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(f"must be a number, {_bounds(self.low, self.high, self.above)}, not {_type_name(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise Refused(f"must be a finite number, {_bounds(self.low, self.high, self.above)}")
        if self.above is not None and number <= self.above:
            raise Refused(f"must be above {self.above}")
        if self.low is not None and number < self.low:
            raise Refused(f"must be at least {self.low}")
        if self.high is not None and number > self.high:
            raise Refused(f"must be at most {self.high}")
        return number

    @property
    def allowed(self) -> str:
        return f"number, {_bounds(self.low, self.high, self.above)}"


@dataclass(frozen=True)
class Switch(Kind):
    """On or off; 1 and 0 are refused, because they would be taken for counts elsewhere."""

    def parse(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Refused("must be True or False (true or false in --data)")
        return value

    @property
    def allowed(self) -> str:
        return "true or false"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _text(value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"must be {wanted}, not {_type_name(value)}; in --data quote it as JSON: 'name=\"...\"'")
    if _CONTROL.search(value):
        raise Refused("must not contain line breaks or control characters")
    return value


@dataclass(frozen=True)
class Name(Kind):
    """A name for a program: no space, no quote, nothing that a shell or a URL would read differently."""

    pattern: str = r"[A-Za-z0-9][A-Za-z0-9._-]*"
    wanted: str = "one word of letters, digits and . _ -"
    longest: int = 128

    def parse(self, value: object) -> str:
        text = _text(value, self.wanted)
        if len(text) > self.longest or not re.fullmatch(self.pattern, text):
            raise Refused(f"must be {self.wanted}")
        return text

    @property
    def allowed(self) -> str:
        return self.wanted


@dataclass(frozen=True)
class OneOf(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    def parse(self, value: object) -> str:
        text = _text(value, f"one of {', '.join(self.words)}")
        if text not in self.words:
            raise Refused(f"must be one of {', '.join(self.words)}")
        return text

    @property
    def allowed(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True)
class WholeOr(Kind):
    """A whole number or one word that stands for "somebody else decides"."""

    low: int
    high: int
    word: str

    def parse(self, value: object) -> int | str:
        if isinstance(value, str) and value == self.word:
            return self.word
        try:
            return Whole(self.low, self.high).parse(value)
        except Refused as refused:
            raise Refused(f'{refused}, or "{self.word}"') from None

    @property
    def allowed(self) -> str:
        return f'whole number, {self.low} to {self.high}, or "{self.word}"'


@dataclass(frozen=True)
class Words(Kind):
    """Free text on one line; a bare number from --data (`smoke_expected=391`) is its own text."""

    longest: int = 4000

    def parse(self, value: object) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
            value = str(value)
        text = _text(value, "text")
        if not text.strip() or len(text) > self.longest:
            raise Refused(f"must be 1 to {self.longest} characters, not blank")
        return text

    @property
    def allowed(self) -> str:
        return f"text on one line, at most {self.longest} characters"


@dataclass(frozen=True)
class NodePath(Kind):
    """A path on a node: absolute, or below the home of the user that the inventory logs in as (`~/`)."""

    def parse(self, value: object) -> str:
        wanted = "an absolute path on the node, or one that starts with ~/"
        text = _text(value, wanted)
        if not text.startswith(("/", "~/")):
            raise Refused(f"must be {wanted}")
        # Docker splits a volume at ':' and reads ',' as an option separator; both would mount something else.
        if re.search(r"[:,\s\"'\\$`*?\[\]{};|&<>()!#%]", text):
            raise Refused(f"must be {wanted}, of letters, digits and . _ - + @ = / only")
        parts = text.removeprefix("~").strip("/").split("/")
        if not parts[0] or any(part in ("", ".", "..") for part in parts):
            raise Refused(f"must be {wanted}, below / and without empty, . or .. parts")
        return text.rstrip("/")

    @property
    def allowed(self) -> str:
        return "absolute path, or ~/..."


_IMAGE = re.compile(
    r"(?P<host>[a-z0-9]+(?:[.-][a-z0-9]+)*(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"@sha256:[0-9a-f]{64}"
)


@dataclass(frozen=True)
class Image(Kind):
    """An image pinned by digest; a tag may point elsewhere tomorrow, and on one node only."""

    def parse(self, value: object) -> str:
        wanted = "an image pinned by digest (repository@sha256:<64 hex digits>)"
        text = _text(value, wanted)
        if not _IMAGE.fullmatch(text):
            raise Refused(f"must be {wanted}; a tag can move")
        return text

    @property
    def allowed(self) -> str:
        return "repository@sha256:<64 hex digits>"


@dataclass(frozen=True)
class Pairs(Kind):
    """A list of KEY=VALUE, each key once."""

    def parse(self, value: object) -> tuple[str, ...]:
        wanted = 'a list of "KEY=VALUE"'
        if not isinstance(value, list | tuple):
            raise Refused(f"must be {wanted}, not {_type_name(value)}")
        seen: dict[str, str] = {}
        for item in value:
            text = _text(item, wanted)
            key, separator, rest = text.partition("=")
            if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                raise Refused(f"must be {wanted}; {shown(item)} is not")
            if key in seen:
                raise Refused(f"must name each key once; {key} is there twice")
            seen[key] = rest
        return tuple(f"{key}={rest}" for key, rest in seen.items())

    @property
    def allowed(self) -> str:
        return 'list of "KEY=VALUE"'


@dataclass(frozen=True)
class Size(Kind):
    """A size as Docker reads it: digits and a unit."""

    def parse(self, value: object) -> str:
        wanted = "a size such as 32g or 512m"
        text = _text(value, wanted)
        if not re.fullmatch(r"[1-9][0-9]{0,5}[mg]", text):
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "size such as 32g or 512m"


@dataclass(frozen=True)
class Address(Kind):
    """An IPv4 address to listen on."""

    def parse(self, value: object) -> str:
        wanted = "an IPv4 address such as 0.0.0.0 or 127.0.0.1"
        text = _text(value, wanted)
        try:
            address = IPv4Address(text)
        except AddressValueError:
            raise Refused(f"must be {wanted}") from None
        if address.is_multicast or (address.is_reserved and not address.is_unspecified):
            raise Refused(f"must be {wanted}; nobody can listen on {address}")
        return str(address)

    @property
    def allowed(self) -> str:
        return "IPv4 address"


@dataclass(frozen=True)
class Network(Kind):
    """An IPv4 network in its usual notation, with a prefix within bounds."""

    low: int
    high: int

    def parse(self, value: object) -> str:
        try:
            network = IPv4Network(value) if isinstance(value, str) else None
        except (AddressValueError, NetmaskValueError, ValueError):
            network = None
        wrong = network is None or not self.low <= network.prefixlen <= self.high
        if network is None or wrong or network.is_loopback or network.is_multicast or "/" not in str(value):
            raise Refused(f"must be {self.allowed}")
        return str(network)

    @property
    def allowed(self) -> str:
        return f"an IPv4 network such as 10.200.0.0/16, a prefix of /{self.low} to /{self.high}"


@dataclass(frozen=True)
class Repository(Kind):
    """A repository of the Hugging Face hub: owner and name."""

    def parse(self, value: object) -> str:
        wanted = "a repository such as owner/name"
        text = _text(value, wanted)
        part = r"[A-Za-z0-9][A-Za-z0-9._-]*"
        if len(text) > 128 or not re.fullmatch(f"{part}/{part}", text) or ".." in text or "--" in text:
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "owner/name"


@dataclass(frozen=True)
class Commit(Kind):
    """A commit, whole: a branch or a tag moves."""

    def parse(self, value: object) -> str:
        wanted = "a commit of 40 hex digits; a branch or a tag can move"
        text = _text(value, wanted)
        if not re.fullmatch(r"[0-9a-f]{40}", text):
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "40 hex digits"


@dataclass(frozen=True)
class Revision(Kind):
    """A branch, a tag or a commit of a repository of the hub."""

    def parse(self, value: object) -> str:
        wanted = "a branch, a tag or a commit of 40 hex digits"
        text = _text(value, wanted)
        plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", text) and not re.search(r"\.\.|//|[./]$|\.lock$", text)
        if len(text) > 128 or not plain:
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "branch, tag or commit"


@dataclass(frozen=True)
class Endpoint(Kind):
    """Where a service is reached: scheme, host and perhaps a port and a path; never a name or a password."""

    def parse(self, value: object) -> str:
        wanted = "an address such as https://huggingface.co"
        text = _text(value, wanted)
        found = re.fullmatch(
            r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::([0-9]{1,5}))?(?:/[\w.~-]+)*/?", text
        )
        if len(text) > 256 or not found or not text.isascii() or not 0 < int(found[1] or 1) < 65536:
            raise Refused(f"must be {wanted}, without user, password or query")
        return text.rstrip("/")

    @property
    def allowed(self) -> str:
        return "http(s)://host[:port][/path]"


@dataclass(frozen=True)
class ControlPath(Kind):
    """A file on the control machine, which is where pyinfra runs."""

    def parse(self, value: object) -> str:
        wanted = "a file's path, such as sparkpair.lock"
        text = _text(value, wanted)
        if not text.strip() or text.endswith("/") or text.rsplit("/", 1)[-1] in (".", ".."):
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "path on the control machine"


@dataclass(frozen=True)
class Licences(Kind):
    """Licences by the names that the hub gives them."""

    def parse(self, value: object) -> str:
        wanted = "licences as the hub names them, with commas between them, such as cc-by-nc-nd-4.0"
        names = [name.strip() for name in _text(value, wanted).split(",")]
        if not all(re.fullmatch(r"[a-z0-9][a-z0-9.+_-]{0,79}", name) for name in names):
            raise Refused(f"must be {wanted}")
        return ",".join(dict.fromkeys(names))

    @property
    def allowed(self) -> str:
        return "licences, with commas between them"


@dataclass(frozen=True)
class Hours(Kind):
    """A span of the day, over midnight too."""

    def parse(self, value: object) -> str:
        wanted = "hours of the day such as 03:00-05:00"
        text = _text(value, wanted)
        found = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", text)
        if not found or found.group(1, 2) == found.group(3, 4):
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "HH:MM-HH:MM"


@dataclass(frozen=True)
class Prefix(Kind):
    """The first digits of an engine hash."""

    def parse(self, value: object) -> str:
        wanted = "8 to 64 hex digits, the first of an engine hash"
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18:
            value = str(value)  # digits alone, from --data
        text = _text(value, wanted)
        if not re.fullmatch(r"[0-9a-f]{8,64}", text):
            raise Refused(f"must be {wanted}")
        return text

    @property
    def allowed(self) -> str:
        return "8 to 64 hex digits"


@dataclass(frozen=True)
class Several(Kind):
    """Any of some words."""

    words: tuple[str, ...]

    def parse(self, value: object) -> str:
        wanted = f"any of {', '.join(self.words)}, with commas between them"
        names = [name.strip() for name in _text(value, wanted).split(",")]
        if not set(names) <= set(self.words):
            raise Refused(f"must be {wanted}")
        return ",".join(dict.fromkeys(names))

    @property
    def allowed(self) -> str:
        return f"any of {', '.join(self.words)}"
