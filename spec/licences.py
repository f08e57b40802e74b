"""Licences of what is downloaded: which need the operator's word, what they mean, and the line that gives it."""

from __future__ import annotations

from spec.lock import FileSet

UNKNOWN = "unknown"
"""What is accepted where the hub states no licence."""

MEANINGS = {
    "cc-by-nc-nd-4.0": "CC BY-NC-ND 4.0: not for commercial purposes, and no changed copy may be passed on; it is "
    "downloaded from its source by each user, and never redistributed",
    "cc-by-nc-sa-4.0": "CC BY-NC-SA 4.0: not for commercial purposes, and changed copies stay under this licence",
    "cc-by-nc-4.0": "CC BY-NC 4.0: not for commercial purposes",
    "cc-by-nd-4.0": "CC BY-ND 4.0: no changed copy may be passed on",
    "cc-by-sa-4.0": "CC BY-SA 4.0: changed copies stay under this licence",
    "other": "a licence of its own; read it there",
    UNKNOWN: "the repository states no licence; ask its owner what you may do",
}


def accepted_as(files: FileSet) -> str:
    """The name under which accepted_licences accepts this licence."""
    return files.licence or UNKNOWN


def acceptance_line(files: FileSet, accepted: str) -> str:
    """The line for group_data/all.py that accepts this licence beside those of `accepted`, the knob's value."""
    names = [name for name in accepted.split(",") if name]
    return f'accepted_licences = "{",".join(dict.fromkeys([*names, accepted_as(files)]))}"'


def is_accepted(files: FileSet, accepted: str) -> bool:
    """Whether the files may be downloaded, as accepted_licences stands."""
    return not files.needs_acceptance or accepted_as(files) in accepted.split(",")


def licence_refusal(files: FileSet, accepted: str) -> str | None:
    """Why these files are not downloaded: their licence, what it means, and the line that accepts it. None if they may
    be. `accepted` is the value of knob accepted_licences."""
    if is_accepted(files, accepted):
        return None
    name = accepted_as(files)
    means = MEANINGS.get(name, "not among those that allow everything; read it there")
    return (
        f"{files.repository} is under {name} ({means}), and accepted_licences does not name it\n"
        f"read it at the repository; to accept it, state in group_data/all.py: {acceptance_line(files, accepted)}"
    )
