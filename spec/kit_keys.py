"""Every variable of the reference kit v2.3-tier1: which knob holds its value here, or why there is none.

A variable that is one knob is declared where the knob is (`Kit("MAX_LEN")` in spec/knobs.py) and only read here; this
file says of each what cannot be read there. Imports no pyinfra, so that whoever judges a name may ask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spec.knobs import KNOBS

REPOSITORY = "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark"
"""The kit's image repository."""

PUBLISHED_TAG = "v2.3-tier1"
"""The tag that the image of stack vllm-exl3 was published under, as the kit's build notes say."""

RETIRED: dict[str, str] = {
    "NFS_PORT": "with weights = nfs the node's own kernel exports them, at the port that NFS always has",
    "NFS_IMAGE": "with weights = nfs the node's own kernel exports them; no container does",
    "VOL_NAME": "with weights = nfs they are mounted by a unit that follows the settings; Docker keeps no volume of "
    "them, whose address nothing would ever compare again",
    "KIT_VERSION": "the image is stated by digest; image_release says which release an older one is",
    "GLM53_ENV": "each node's settings come from the inventory and group_data/",
    "GLM53_UPDATE_URL": "where the newest release of the image stands is the stack's own",
    "GLM53_TOPK_FIX_SO": "the fix has been part of the image since v2, and the kit itself ignores it from there on",
}
"""Variables that have no knob, each with the reason."""

ADDRESSES: dict[str, str] = {
    "WORKER_LAN_IP": "the worker's address in `inventory.py`",
    "WORKER_USER": "the worker's `user` in `inventory.py`; empty: the head's",
    "HEAD_RAIL_IP": "`address` of the head's rail",
    "WORKER_RAIL_IP": "`address` of the worker's rail",
    "NCCL_SUBNET": "the prefix length of both addresses; a network without both is refused",
    "HEAD_NCCL_IF": "`netdev` of the head's rail",
    "HEAD_NCCL_HCA": "`hca` of the head's rail",
    "WORKER_NCCL_IF": "`netdev` of the worker's rail",
    "WORKER_NCCL_HCA": "`hca` of the worker's rail",
    "NCCL_IF": "`netdev` of that node's rail (in a node's own file)",
    "NCCL_HCA": "`hca` of that node's rail (in a node's own file)",
}
"""Variables that say what a node is or where its rail lies: inventory data."""

THREE_STATES = frozenset({"KV_DTYPE", "ATTN_BACKEND", "KV_SKIP_LAYERS", "LOAD_FORMAT", "PREFIX_MATCH_UNIT"})
"""Variables of which the kit tells empty (the engine decides) from unset (its own default); to DFLASH_REVISION empty
means the newest commit, and of any other an empty one is an unset one."""

NOT_FORWARDED = frozenset(
    {
        "KDA_PREFILL",
        "MIXED_PREFILL_MAX_DEFER",
        "NAME",
        "NCCL_GID_INDEX",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_DFLASH_KV_RING",
    }
)
"""Variables that the kit's installer hands to neither launcher, so that in its `.env` they had no effect."""

ELSEWHERE: dict[str, str] = {"HF_ENDPOINT": "hub_endpoint"}
"""Variables that the kit does not read and the programs that it runs do, and the knob that says the same here."""

_REMARKS: dict[str, str] = {
    "WEIGHTS_MODE": "As in the kit, the worker holds them with `nfs`; `nfs_server` says otherwise.",
    "EXL3_REPO": "`make lock` writes down which of its files are meant; only those are downloaded.",
    "EXL3_REPO_FALLBACK": "`make lock` proves that its files are the same.",
    "IMAGE": f"The tag `{PUBLISHED_TAG}` of the kit's repository is the stack's default. Any other tag is refused; "
    "`docker image inspect --format '{{index .RepoDigests 0}}' IMAGE` names its digest.",
    "KV_CACHE_MEMORY": 'Empty is the default, 14.4e9; the word `auto` is `"auto"`.',
    "MNBT": "Empty is the default.",
    "SPEC": 'A word other than `dflash` is `""`, as in the kit.',
    "MTP": "Above 0 it beats SPEC: method `mtp` with that many tokens.",
    "DFLASH_TOKENS": "Of no effect while MTP is above 0, or SPEC is not `dflash`.",
    "GLM53_NO_UPDATE_CHECK": "The other way round: 1 there is `False` here.",
    "NCCL_NCHANNELS": '0 is `""`: NCCL decides.',
    "EAGER": "As in the kit, anything but 0 is on.",
    "SKIP_MM_PROFILING": "As in the kit, anything but 0 is on.",
    "NCCL_GID_INDEX": "Better left out: the row moves when a link comes back.",
    "DFLASH_REVISION": 'Empty is `""`: the newest commit.',
    "MODEL_HOST_PATH": "The kit writes the head's home into it for both nodes; `~/` is the home on each.",
    "DFLASH_DIR": "As MODEL_HOST_PATH.",
    "CACHE_HOST_PATH": "As MODEL_HOST_PATH.",
}

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")


def _knobs_of() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, knob in KNOBS.items():
        for word in knob.kit.name.split(",") if knob.kit else ():
            variable = word.strip()
            if _VARIABLE.fullmatch(variable) and variable not in RETIRED:
                found[variable] = (*found.get(variable, ()), name)
    return found


KNOBS_OF: dict[str, tuple[str, ...]] = _knobs_of()
"""The knobs that a variable sets, as spec/knobs.py declares it."""


def known() -> tuple[str, ...]:
    """Every variable of the kit."""
    return (*ADDRESSES, *KNOBS_OF, *RETIRED)


@dataclass(frozen=True)
class Treatment:
    """What becomes of one variable, in words for a table."""

    variable: str
    becomes: str
    remark: str


def treatments() -> tuple[Treatment, ...]:
    """One for each variable, in the order of the kit's example: addresses, knobs, what is retired."""
    rows = [Treatment(variable, becomes, "") for variable, becomes in ADDRESSES.items()]
    for variable, names in KNOBS_OF.items():
        remarks = [_REMARKS[variable]] if variable in _REMARKS else []
        if variable in THREE_STATES:
            remarks.append('Empty is `""`: the engine decides.')
        if variable in NOT_FORWARDED:
            remarks.append("The kit's installer does not hand it on.")
        links = ", ".join(f"`{name}`" for name in names)
        rows.append(Treatment(variable, links, " ".join(remarks)))
    rows += [
        Treatment(variable, "retired", f"{reason[0].upper()}{reason[1:]}.") for variable, reason in RETIRED.items()
    ]
    return tuple(rows)


MARK = "<!-- kit-variables: generated by `python -m spec.docs` from spec/kit_keys.py -->\n"
"""Stands in docs/migration.md before the table; what is above is written by hand."""


def migration_page(page: str) -> str:
    """docs/migration.md as it should be: the page's own text, and the table after its mark."""
    return page.partition(MARK)[0] + MARK + migration_table()


def migration_table() -> str:
    """The rows of docs/migration.md: variable of the kit, what it becomes, what to know."""
    lines = ["| Reference kit | Here | To know |", "|---|---|---|"]
    for row in treatments():
        cells = (f"`{row.variable}`", row.becomes, row.remark or "-")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
