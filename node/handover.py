"""What the keeper asks of all nodes before it takes a launch over, or goes back to one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from node import wire
from node.link import AgentLink, Away, Refusal

WANTED_SECONDS = 20.0
WANTED_CALL_SECONDS = 5.0
"""One try; while it lasts no lease is renewed."""


@dataclass(frozen=True)
class Wanted:
    """The wanted set of all nodes, or why it cannot be taken over."""

    texts: tuple[str, ...]
    manifest: dict[str, Any]
    refusals: tuple[str, ...]


async def wanted(links: Sequence[AgentLink], engine: str, clock: Callable[[], float]) -> Wanted:
    """Every node's wanted rank, if together they are the launch of that hash."""
    refusals: list[str] = []
    asked = await asyncio.gather(*(_wanted_of(link, refusals, clock) for link in links))
    answers = [answer for answer in asked if answer is not None]
    if refusals:
        return Wanted((), {}, tuple(refusals))
    if len({tuple(answer["image"]["layers"]) for answer in answers}) != 1:
        refusals.append("the nodes hold different layers for the wanted image; run deploy.py again")
    found = wire.engine_hash([(answer["text"], answer["identities"]) for answer in answers])
    if found != engine:
        refusals.append(
            f"the nodes' wanted set is {found[:12]}, deploy handed over {engine[:12]}: "
            "it was changed meanwhile; run deploy.py again"
        )
    for rank, answer in enumerate(answers):
        if wire.parse_rank(answer["text"]).rank != rank:
            refusals.append(f"{links[rank].name} holds another rank's wanted set; run deploy.py again")
    manifest = {
        "engine": engine,
        "accepted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "nodes": [link.name for link in links],
        "identities": [answer["identities"] for answer in answers],
        "image": answers[0]["image"]["id"],
    }
    return Wanted(tuple(answer["text"] for answer in answers), manifest, tuple(refusals))


async def _wanted_of(link: AgentLink, refusals: list[str], clock: Callable[[], float]) -> dict[str, Any] | None:
    """A link may just be connecting, as right after a start of both programs: tried until a deadline."""
    until = clock() + WANTED_SECONDS
    while True:
        try:
            return await link.call("wanted", timeout=WANTED_CALL_SECONDS)
        except Refusal as error:
            refusals.append(str(error))
            return None
        except Away as error:
            if clock() > until:
                refusals.append(f"{error}; is the node up? sparkpair-agent.service?")
                return None
            await asyncio.sleep(0.3)


async def cannot_start(links: Sequence[AgentLink], texts: Sequence[str], identities: Sequence[Sequence[str]]) -> str:
    """Why a kept launch cannot be started on these nodes any more; "" where it can, or a node cannot be asked now."""
    if len(texts) != len(links):
        return f"it is of {len(texts)} nodes, the pair has {len(links)}"
    reasons = await asyncio.gather(
        *(_lacks(link, text, tuple(known)) for link, text, known in zip(links, texts, identities, strict=True))
    )
    return "; ".join(reason for reason in reasons if reason)


async def _lacks(link: AgentLink, text: str, identities: tuple[str, ...]) -> str:
    try:
        answer = await link.call("holds", timeout=WANTED_CALL_SECONDS, text=text)
    except Away:
        return ""
    except Refusal as error:
        return str(error)
    # The identities of secrets follow those of the content: a key that was exchanged hinders no start.
    content = [str(identity) for identity in answer["identities"]]
    if list(identities[: len(content)]) != content:
        return f"{link.name}: its weights or drafter are other ones by now"
    return ""
