"""What a variable of the reference kit v2.3-tier1 says in our knobs: the kit's launcher, read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spec import kit_keys
from spec.capacity import VALIDATED_BYTES_BEFORE_V2_2
from spec.kinds import Number, Switch, Whole, WholeOr
from spec.knobs import KNOBS, RELEASES, Knob, Knobs, Refused, shown
from spec.stacks import STACKS

STACK = STACKS["vllm-exl3"]
DEFAULTS = STACK.effective(Knobs())


@dataclass(frozen=True)
class Given:
    """One variable as a file states it. `of_node`: the file is a launcher's, not the installer's."""

    variable: str
    value: str
    place: str
    of_node: bool


Environment = Mapping[str, Given]


@dataclass
class Reading:
    """The knobs that one launcher's variables come to."""

    values: dict[str, tuple[object, str]] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def set(self, knob: str, value: object, variable: str) -> None:
        self.values[knob] = (KNOBS[knob].parse(value), variable)


def read(environment: Environment) -> Reading:
    """What the kit's launcher would make of these variables, in our knobs."""
    found = Reading()
    for variable, given in environment.items():
        names = kit_keys.KNOBS_OF.get(variable)
        if names is None:
            continue
        try:
            special = _SPECIAL.get(variable)
            if special:
                special(found, given.value, environment)
            elif given.value:
                found.set(names[0], _from_text(KNOBS[names[0]], given.value), variable)
            elif variable in kit_keys.THREE_STATES:
                found.set(names[0], "", variable)
            else:
                found.remarks[variable] = "empty is the kit's default; left out"
        except Refused as reason:
            found.refused[variable] = str(reason)
    _old_image(found)
    return found


def _from_text(knob: Knob, text: str) -> object:
    """The value that a text of the kit is for a knob. Raises Refused."""
    match knob.kind:
        case Whole():
            return _whole(text, knob.kind.allowed)
        case WholeOr(_, _, word):
            return text if text == word else _bytes(text, knob.kind.allowed)
        case Number():
            if not re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text):
                raise Refused(f"must be a {knob.kind.allowed}")
            return float(text)
        case Switch():
            if text not in ("0", "1"):
                raise Refused("must be 0 or 1")
            return text == "1"
        case _:
            return text


def _whole(text: str, allowed: str) -> int:
    if not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        raise Refused(f"must be a {allowed}")
    return int(text)


def _bytes(text: str, allowed: str) -> int:
    """A number of bytes as the engine reads it: 14400000000, 14.4g (powers of 1000) or 13G (powers of 1024)."""
    found = re.fullmatch(r"([0-9]{1,6})(\.[0-9]{1,9})?([kmgt])|([0-9]{1,6})([KMGT])", text)
    if found is None:
        return _whole(text, allowed)
    whole, part, small, binary, large = found.groups()
    if large:
        return int(binary) * int(1024 ** ("KMGT".index(large) + 1))
    return round(float(f"{whole}{part or ''}") * int(1000 ** ("kmgt".index(small) + 1)))


def _image(found: Reading, text: str, environment: Environment) -> None:
    if not text:
        found.remarks["IMAGE"] = "empty is the kit's default; left out"
        return
    parts = re.fullmatch(r"([^@\s]+?)(?::([A-Za-z0-9_][A-Za-z0-9._-]*))?(?:@(sha256:[0-9a-f]{64}))?", text)
    repository, tag, digest = parts.groups() if parts else (text, None, None)
    of_kit = repository == kit_keys.REPOSITORY
    if digest:
        found.set("image", f"{repository}@{digest}", "IMAGE")
        release = _release(tag) if of_kit and tag else None
        if release and release != RELEASES[-1]:
            found.set("image_release", release, "IMAGE")
        return
    if of_kit and tag == kit_keys.PUBLISHED_TAG:
        found.set("image", STACK.image, "IMAGE")
        return
    whole = f"{repository}:{tag}" if tag else f"{repository}:latest"
    raise Refused(
        f"a tag can be pushed again, so an image is stated by digest; on the head, docker image inspect --format "
        f"'{{{{index .RepoDigests 0}}}}' {whole} names it: write IMAGE={whole}@sha256:..., or leave IMAGE out for "
        f"{kit_keys.PUBLISHED_TAG}"
    )


def _release(tag: str) -> str | None:
    """v2.1 of v2.1-something."""
    return tag.partition("-")[0] if tag.partition("-")[0] in RELEASES else None


def _old_image(found: Reading) -> None:
    """The kit's launcher gives images v1 and v2 at most 12.4e9 bytes of cache, whatever is stated."""
    release = found.values.get("image_release", (None, ""))[0]
    stated, _ = found.values.get("kv_cache_memory_bytes", (None, ""))
    if release in RELEASES[:2] and not (isinstance(stated, int) and stated <= VALIDATED_BYTES_BEFORE_V2_2):
        found.set("kv_cache_memory_bytes", VALIDATED_BYTES_BEFORE_V2_2, "KV_CACHE_MEMORY" if stated else "IMAGE")


def _mtp_tokens(environment: Environment) -> int:
    text = environment["MTP"].value if "MTP" in environment else ""
    allowed = "whole number, 0 to 16"
    tokens = _whole(text or "0", allowed)
    if tokens < 0:
        raise Refused(f"must be a {allowed}")
    return tokens


def _beaten_by_mtp(found: Reading, variable: str, environment: Environment) -> bool:
    try:
        tokens = _mtp_tokens(environment)
    except Refused:  # said of MTP itself
        return False
    if tokens:
        found.remarks[variable] = f"of no effect beside MTP={tokens}; left out"
    return bool(tokens)


def _mtp(found: Reading, text: str, environment: Environment) -> None:
    tokens = _mtp_tokens(environment)
    if tokens:
        found.set("speculative_tokens", tokens, "MTP")
        found.set("speculative_method", "mtp", "MTP")
    else:
        found.remarks["MTP"] = "the kit's default; left out"


def _spec(found: Reading, text: str, environment: Environment) -> None:
    if _beaten_by_mtp(found, "SPEC", environment):
        return
    if not text:
        found.remarks["SPEC"] = "empty is the kit's default; left out"
        return
    found.set("speculative_method", "dflash" if text == "dflash" else "", "SPEC")
    if text not in ("dflash", "none"):
        found.remarks["SPEC"] = f"the kit knows dflash and none, and takes {shown(text)} for none"


def _dflash_tokens(found: Reading, text: str, environment: Environment) -> None:
    if _beaten_by_mtp(found, "DFLASH_TOKENS", environment):
        return
    method = environment["SPEC"].value if "SPEC" in environment else ""
    if method not in ("", "dflash"):
        found.remarks["DFLASH_TOKENS"] = f"of no effect beside SPEC={method}; left out"
    elif not text:
        found.remarks["DFLASH_TOKENS"] = "empty is the kit's default; left out"
    else:
        found.set("speculative_tokens", _from_text(KNOBS["speculative_tokens"], text), "DFLASH_TOKENS")


def _channels(found: Reading, text: str, environment: Environment) -> None:
    if not text:
        found.remarks["NCCL_NCHANNELS"] = "empty is the kit's default; left out"
    else:
        found.set("nccl_channels", "" if text == "0" else _from_text(KNOBS["nccl_channels"], text), "NCCL_NCHANNELS")


def _revision(found: Reading, text: str, environment: Environment) -> None:
    found.set("drafter_revision", text, "DFLASH_REVISION")


def _anything_but_0(variable: str) -> Callable[[Reading, str, Environment], None]:
    def read(found: Reading, text: str, environment: Environment) -> None:
        if not text:
            found.remarks[variable] = "empty is the kit's default; left out"
            return
        found.set(kit_keys.KNOBS_OF[variable][0], text != "0", variable)
        if text not in ("0", "1"):
            found.remarks[variable] = f"the kit takes anything but 0 for on, {shown(text)} too"

    return read


def _no_update_check(found: Reading, value: str, environment: Environment) -> None:
    """Off where the kit says that it is not to be asked."""
    del environment
    found.set("update_check", not value or not _from_text(KNOBS["update_check"], value), "GLM53_NO_UPDATE_CHECK")


_SPECIAL: dict[str, Callable[[Reading, str, Environment], None]] = {
    "IMAGE": _image,
    "MTP": _mtp,
    "SPEC": _spec,
    "DFLASH_TOKENS": _dflash_tokens,
    "NCCL_NCHANNELS": _channels,
    "DFLASH_REVISION": _revision,
    "GLM53_NO_UPDATE_CHECK": _no_update_check,
    "EAGER": _anything_but_0("EAGER"),
    "SKIP_MM_PROFILING": _anything_but_0("SKIP_MM_PROFILING"),
}


def is_default(knob: str, value: object, values: Mapping[str, tuple[object, str]]) -> bool:
    """Whether the stack does the same when the knob is left out."""
    if knob == "speculative_tokens":
        # With mtp the number is what the operator chose, also where it is the usual one.
        method, _ = values.get("speculative_method", ("dflash", ""))
        return method == "dflash" and value == STACK.speculative_tokens["dflash"]
    default = getattr(DEFAULTS, knob)
    if isinstance(KNOBS[knob].kind, Switch) and KNOBS[knob].flag:
        return bool(default) == value
    return bool(default == value)
