"""The outlook of a deploy in words: after pyinfra's table in a dry run, before it asks in a real one, and as JSON."""

from __future__ import annotations

import atexit
import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import click
from pyinfra import logger
from pyinfra.api.inventory import Inventory
from pyinfra.context import ctx_inventory, ctx_state

from checks import outlook as checked
from checks import pair, rejected
from checks.advice import advice
from checks.outlook import Outlook, Pool, Start, Wanted
from checks.pair import Todo
from checks.rejected import short
from operations import lock, wanted
from operations.run import Run
from operations.sight import starts
from spec import rules
from spec.changes import Change, Hidden
from spec.knobs import Cost
from spec.render import netplan_text, rank_text, service_text

FILE = "SPARKPAIR_PLAN"
"""The variable that names a file for the outlook as JSON; who sets it shows the text himself."""
WIDTH = 100
WIDTHS = (40, 24, 20, 16)
"""Characters of a value in the table, the first with which its lines are no longer than WIDTH; JSON has it whole."""
FIRST = ("First start; beside the defaults", "default", "here", "becomes", "ranks")
AGAIN = ("Settings that change", "old", "new", "becomes", "ranks", "costs")
COSTS = {
    Cost.NOTHING: "nothing",
    Cost.SERVICE: "the keeper reloads",
    Cost.RESTART: "one restart of the pair",
    Cost.STAGING: "staging, one restart",
    Cost.FABRIC: "the rails pause",
}

_arrived: WeakKeyDictionary[Inventory, set[str]] = WeakKeyDictionary()


def outlook(run: Run) -> None:
    """Tell it, once, when every node has been planned: a deploy that is refused on one has no outlook."""
    arrived = _arrived.setdefault(ctx_inventory.get(), set())
    arrived.add(run.node.name)
    if len(arrived) < len(run.cluster.nodes):
        return
    arrived.clear()
    found = of(run)
    text = lines(found)
    place = os.environ.get(FILE)
    if place:
        Path(place).write_text(json.dumps(document(found)), encoding="utf-8")
    elif lock.is_real_run():
        if not found.is_quiet:
            for line in text:
                logger.info(f"    {line}" if line else "")
    else:
        # pyinfra prints its table after this, and then ends.
        atexit.register(_tell, text)


def of(run: Run) -> Outlook:
    """What this run will do."""
    cluster, facts = run.cluster, run.all_seen()
    rendered = Wanted(
        engine=wanted.engine(run),
        identities=pair.wanted_identities(cluster, facts),
        rank_texts=tuple(rank_text(cluster, node) for node in cluster.nodes),
        service_text=service_text(cluster),
        rail_texts=tuple(netplan_text(cluster, node) for node in cluster.nodes),
    )
    warnings = [
        *rules.warnings(cluster.settings),
        *advice(cluster, facts, starts=starts(run), talk=run.talk),
        *rejected.remarks(cluster, facts[cluster.head.name], rendered.engine),
    ]
    return checked.outlook(cluster, facts, rendered, warnings, _rows_due())


def _rows_due() -> list[str]:
    """The rows with something to do on any node, in order, as pyinfra's table will have them."""
    state = ctx_state.get()
    due = {
        op_hash
        for host in state.inventory.iter_activated_hosts()
        for op_hash, data in state.ops[host].items()
        if data.operation_meta._maybe_is_change
    }
    return [name for op_hash in state.get_op_order() if op_hash in due for name in sorted(state.op_meta[op_hash].names)]


def _tell(text: Sequence[str]) -> None:
    click.echo("\n".join(["", *(f"    {line}" if line else "" for line in text), ""]), err=True)


# In words


def lines(found: Outlook) -> list[str]:
    """For a person, without indent."""
    sentences = [
        *found.notes,
        *_pool(found),
        *_meaning(found),
        *_way_back(found),
        *(f"Warning: {line}" for line in found.warnings),
    ]
    return [*_settings(found), *(part for text in sentences for part in _wrapped(text))]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _settings(found: Outlook) -> Iterator[str]:
    if found.unknown:
        yield from _wrapped(f"Old values unknown: {found.unknown}.")
    if found.is_first and not found.changes:
        yield "First start, with the defaults of the stack."
    elif found.changes:
        head = FIRST if found.is_first else AGAIN
        tables = [_table(head, [_cells(found, row, width) for row in found.changes]) for width in WIDTHS]
        yield from next((table for table in tables if max(map(len, table)) <= WIDTH), tables[-1])
    elif not found.unknown:
        yield "No setting changes."


def _cost(found: Outlook, row: Change) -> str:
    if row.cost in (Cost.RESTART, Cost.STAGING):
        if found.is_stopped:
            return "nothing while stopped"
        if found.todo is Todo.START:
            return "part of the start"
    return COSTS[row.cost]


def _cells(found: Outlook, row: Change, width: int) -> list[str]:
    old, new = (_cut(_value(value), width) for value in (row.old, row.new))
    if isinstance(row.old, Hidden) and isinstance(row.new, Hidden):
        new = "(changed)"
    ranks = ", ".join(map(str, row.ranks)) or "-"
    name = "".join(letter if letter.isprintable() else "?" for letter in row.knob)
    cells = [name, old, new, _cut(row.becomes, max(width, 24)), ranks]
    return cells if found.is_first else [*cells, _cost(found, row)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned, the first column of the rows set in under its heading."""
    table = [list(head), *([f"  {row[0]}", *row[1:]] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _value(value: object) -> str:
    """As an operator would type it, whole; spec.knobs.shown keeps its beginning only."""
    if value is None:
        return "(left out)"
    if isinstance(value, Hidden):
        return "(set)"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _cut(text: str, width: int) -> str:
    """Both ends: digests and paths tell themselves apart at the end."""
    if len(text) <= width:
        return text
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def _pool(found: Outlook) -> Iterator[str]:
    if not found.is_first and not any(row.cost in (Cost.RESTART, Cost.STAGING) for row in found.changes):
        return
    before, after = found.before, found.after
    if after.capacity is None and (before is None or before.capacity is None):
        yield "KV pool: not known before the start; it is not computed for these settings."
        return
    sides = [side for side in (before, after) if side is not None]
    tokens = [f"{side.capacity.pool_tokens:,}" if side.capacity else "unknown" for side in sides]
    requests = [f"{side.capacity.full_requests:.2f}" if side.capacity else "unknown" for side in sides]
    lengths = [_length(side) for side in sides]
    if len(set(tokens)) == 1 and len(set(lengths)) == 1:
        as_before = ", as before" if len(sides) == 2 else ""
        yield f"KV pool, computed: {tokens[-1]} tokens ({requests[-1]} requests of {lengths[-1]}){as_before}"
    elif len(set(lengths)) == 1:
        many = " -> ".join(requests)
        yield f"KV pool, computed: {' -> '.join(tokens)} tokens ({many} requests of {lengths[-1]})"
    else:
        many = " -> ".join(f"{count} requests of {length}" for count, length in zip(requests, lengths, strict=True))
        yield f"KV pool, computed: {' -> '.join(tokens)} tokens ({many})"


def _length(side: Pool) -> str:
    return f"{side.max_model_len:,}" if isinstance(side.max_model_len, int) else "the checkpoint's length"


def _meaning(found: Outlook) -> Iterator[str]:
    """What is interrupted, and for how long."""
    phase, start = found.state.phase, _about(found.start)
    because = f" ({found.reason})" if found.reason else ""
    if found.docker:
        ends = ": every container there ends" + (", a rank of the pair too" if found.ends_ranks else "")
        yield f"Docker is restarted on {', '.join(found.docker)}{ends}."
    if found.rails:
        pauses = "" if found.is_first else " anew: traffic over them pauses, and answers with it"
        yield f"The rails of {', '.join(found.rails)} are set up{pauses}."
    if found.is_stopped:
        yield "The pair is stopped on purpose and stays so; nothing is interrupted."
        if found.moves_the_launch or found.unknown:
            yield (
                "It keeps the launch that was accepted before: sudo sparkpair start on the head starts that one. "
                "Deploy again after it for this one."
            )
    elif found.is_first:
        yield f"The pair is started and answers after {start}."
    elif found.todo is Todo.START:
        yield f"The pair is {phase}{because}. It is started and answers after {start}."
    elif found.todo is Todo.RESTART and found.ends_ranks and found.interrupts:
        sure = (
            "by its own restart, if it is up by then" if found.restarts_for_sure else "if they are, by its own restart"
        )
        yield f"A pair that serves is interrupted by that, and again, {sure}; each time for {start}."
    elif found.todo is Todo.RESTART and not found.restarts_for_sure:
        yield f"If they are, a pair that serves is interrupted once, for {start}{_grace(found)}."
    elif found.todo is Todo.RESTART and phase == "running":
        yield f"Serving is interrupted once, for {start}{_grace(found)}."
    elif found.todo is Todo.RESTART and phase == "silent":
        yield f"The keeper does not run. A pair that serves is interrupted once, for {start}{_grace(found)}."
    elif found.todo is Todo.RESTART:
        yield f"The pair does not serve now, it is {phase}{because}. Its start begins anew and takes {start}."
    elif found.ends_ranks:
        yield f"A pair that serves is interrupted once; the keeper starts it again, in {start}."
    elif phase == "unknown":
        yield "What is interrupted is not known either."
    else:
        reload = "; its keeper reloads its settings" if found.reloads_keeper else ""
        pause = "A pair that serves is not restarted" if found.rails else "A pair that serves goes on serving"
        yield f"{pause}{reload}."
    turned = {row.knob for row in found.changes} & checked.COMPILED_ANEW
    if turned and not found.is_first and not found.is_stopped and found.start.measured:
        yield f"That start had another {' and '.join(sorted(turned))}: kernels are compiled anew, which takes longer."


def _way_back(found: Outlook) -> Iterator[str]:
    """What of this a rollback leaves as it is."""
    if found.way_back.not_undone:
        yield f"A rollback would not undo: {'; '.join(found.way_back.not_undone)}."
    for one in found.way_back.stranded:
        yield f"After this there is no way back to generation {short(one.engine)}: {one.reason}."


def _about(start: Start) -> str:
    """The figure with where it is from."""
    if start.seconds is None:
        return f"a time that is unknown ({start.source})"
    return f"about {start.seconds:.0f} s ({start.source})"


def _grace(found: Outlook) -> str:
    seconds = found.grace_seconds
    return f", and up to {seconds} s before that in which running requests may finish" if seconds else ""


# For programs


def document(found: Outlook) -> dict[str, Any]:
    """The outlook as JSON; a value that may be a secret is only told to be set or changed."""
    return {
        "format": 1,
        "state": {"accepted": found.state.engine, "desired": found.state.desired, "phase": found.state.phase},
        "todo": found.todo.value,
        "first_start": found.is_first,
        "old_values_unknown": found.unknown or None,
        "settings": [_row(row) for row in found.changes],
        "pool": {"before": _pool_document(found.before), "after": _pool_document(found.after)},
        "start": {
            "seconds": found.start.seconds,
            "source": "measured" if found.start.measured else "published" if found.start.seconds else "unknown",
            "text": found.start.source,
        },
        "interrupts": {
            "serving": found.interrupts,
            "docker": list(found.docker),
            "rails": list(found.rails),
        },
        "rollback": {
            "not_undone": list(found.way_back.not_undone),
            "stranded": [{"generation": one.engine, "reason": one.reason} for one in found.way_back.stranded],
        },
        "warnings": list(found.warnings),
        "quiet": found.is_quiet,
        "text": lines(found),
    }


def _row(row: Change) -> dict[str, Any]:
    old, new = ("(set)" if isinstance(value, Hidden) else value for value in (row.old, row.new))
    if isinstance(row.old, Hidden) and isinstance(row.new, Hidden):
        new = "(changed)"
    return {
        "knob": row.knob,
        "old": old,
        "new": new,
        "becomes": row.becomes,
        "ranks": list(row.ranks),
        "cost": row.cost.name.lower(),
    }


def _pool_document(side: Pool | None) -> dict[str, Any] | None:
    if side is None or side.capacity is None:
        return None
    return {
        "tokens": side.capacity.pool_tokens,
        "full_requests": round(side.capacity.full_requests, 3),
        "max_model_len": side.max_model_len,
    }
