"""Does the API answer as an application needs it to?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol

from checks.verdict import Verdict, broken, holds
from facts.api import A_KEY, OTHER_KEY, Answer, arguments_of
from facts.values import Unknown
from spec.cluster import Cluster
from spec.stacks.common import api_address

MARKS = ("<think>", "</think>")
TOOL_PROMPT = "What is the weather in Paris? Use the tool."
DEPLOY = "run deploy.py, for the key that is stored on the head"
WITH_KEY = "the settings state no key: run deploy.py to take it away, or state require_api_key = True"
LOOK = "sudo sparkpair status, on the head; docs/troubleshooting.md"


class Client(Protocol):
    """What is asked; facts.api.Chat answers it."""

    def models(self) -> tuple[str, ...] | Unknown: ...
    def without_key(self) -> int | Unknown: ...
    def ask(
        self, prompt: str, max_tokens: int, *, stream: bool = False, thinking: bool | None = None, tools: bool = False
    ) -> Answer | Unknown: ...


@dataclass(frozen=True)
class Place:
    """Where the API is. `behind` says that the control machine gets there only through the head."""

    address: str
    port: int
    behind: bool


def place(cluster: Cluster) -> Place:
    """Where the control machine finds the API. What is bound to the loopback device or to a rail is reached from the
    head; so that a control machine need not have a way to the rails, it goes through the head."""
    bind = IPv4Address(cluster.knobs.api_bind)
    management = cluster.head.management_address
    if bind.is_unspecified or bind == management:
        return Place(str(management), cluster.api_port, behind=False)
    return Place(str(api_address(cluster.knobs)), cluster.api_port, behind=True)


def silent(url: str, why: Unknown) -> Verdict:
    """There was nobody to ask."""
    return broken("", f"the API at {url} could not be asked: {why.reason}", LOOK)


def answers(cluster: Cluster, url: str, client: Client) -> Iterator[Verdict]:
    """One statement after another; without a server the first is the only one."""
    knobs, model = cluster.knobs, cluster.served_model_name
    expected = knobs.smoke_expected or ""
    served = client.models()
    if isinstance(served, Unknown):
        fix = {A_KEY: WITH_KEY, OTHER_KEY: DEPLOY}.get(served.reason, LOOK)
        yield broken("", f"the API at {url} does not answer: {served.reason}", fix)
        return
    if model not in served:
        yield broken("", f"the API at {url} serves {', '.join(served)}, wanted {model}", "run deploy.py")
        return
    yield holds("", f"the API at {url} serves {model}")
    if knobs.require_api_key:
        yield locked(url, client.without_key())
    for stream in (False, True):
        how = "streaming" if stream else "at once"
        answer = client.ask(knobs.smoke_prompt, knobs.smoke_max_tokens, stream=stream)
        if isinstance(answer, Unknown):
            yield _silent(f"smoke, {how}", answer)
        elif expected not in answer.content or not answer.content.strip():
            yield broken(
                "",
                f"smoke, {how}: {knobs.smoke_prompt!r} was answered {_shown(answer)}, wanted "
                f"{repr(expected) if expected else 'any text'}",
                "is it the right model? smoke_prompt, smoke_expected and smoke_max_tokens are knobs",
            )
        else:
            yield holds("", f"smoke, {how}: {knobs.smoke_prompt!r} was answered {_shown(answer)}")
    if knobs.tool_call_parser:
        yield _tool_call(client.ask(TOOL_PROMPT, knobs.smoke_max_tokens, tools=True))
    if knobs.reasoning_parser:
        yield _without_reasoning(client.ask(knobs.smoke_prompt, knobs.smoke_max_tokens, thinking=False))
        yield _with_reasoning(client.ask(knobs.smoke_prompt, knobs.smoke_max_tokens, thinking=True))


def locked(url: str, status: int | Unknown) -> Verdict:
    """Whether a request without the key is refused."""
    if isinstance(status, Unknown):
        return _silent("a request without the key", status)
    if status != 401:
        return broken("", f"the API at {url} answers {status} to a request without the key, wanted 401", LOOK)
    return holds("", "a request without the key is answered 401")


def _tool_call(answer: Answer | Unknown) -> Verdict:
    if isinstance(answer, Unknown):
        return _silent("tool call", answer)
    for name, written in answer.tools:
        arguments = arguments_of(written)
        if name == "get_weather" and arguments and arguments.get("city"):
            return holds("", f"tool call: {name}({written})")
    seen = ", ".join(f"{name}({written})" for name, written in answer.tools) or _shown(answer)
    return broken("", f"tool call: wanted get_weather with a city, got {seen}", "tool_call_parser must fit the model")


def _without_reasoning(answer: Answer | Unknown) -> Verdict:
    if isinstance(answer, Unknown):
        return _silent("reasoning off", answer)
    if not answer.content:
        return broken("", f"reasoning off: the answer is empty ({answer.finish})", "raise smoke_max_tokens")
    if any(mark in answer.content for mark in MARKS):
        return broken(
            "", f"reasoning off: there is reasoning in {_shown(answer)}", "reasoning_parser must fit the model"
        )
    if answer.reasoning:
        return broken("", f"reasoning off: the model reasoned: {answer.reasoning[:80]!r}", LOOK)
    return holds("", "reasoning off: none in the answer")


def _with_reasoning(answer: Answer | Unknown) -> Verdict:
    if isinstance(answer, Unknown):
        return _silent("reasoning on", answer)
    if not answer.reasoning or any(mark in answer.content for mark in MARKS):
        return broken(
            "",
            f"reasoning on: it did not arrive in its own field; the answer is {_shown(answer)}",
            "reasoning_parser must fit the model",
        )
    return holds("", "reasoning on: it arrives in its own field")


def _silent(what: str, answer: Unknown) -> Verdict:
    return broken("", f"{what}: no answer: {answer.reason}", LOOK)


def _shown(answer: Answer) -> str:
    text = answer.content if len(answer.content) <= 80 else answer.content[:77] + "..."
    return repr(text)
