"""What the served API answers to an application: the openai package is the client, as it would be there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from facts.values import Unknown

CONNECT_SECONDS = 5.0
A_KEY = "it asks for a key (HTTP 401)"
OTHER_KEY = "it asks for another key (HTTP 401)"

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(frozen=True)
class Answer:
    """One chat completion. `tools` are (name, arguments as they were written)."""

    content: str
    reasoning: str
    tools: tuple[tuple[str, str], ...]
    finish: str


class Chat:
    """A client of one server, with its key if it asks for one. Its methods never raise for what a server may do: no
    answer is Unknown. No text of theirs holds the key."""

    def __init__(self, url: str, model: str, timeout_seconds: float, key: str = "") -> None:
        # Imported here: half a second that only a verification should pay.
        import httpx
        import openai

        self._errors = (openai.OpenAIError, httpx.HTTPError, ValueError)
        self._locked = openai.AuthenticationError
        self._get = httpx.get
        self._url, self._model, self._key = url, model, key
        self._client = openai.OpenAI(
            base_url=url,
            api_key=key or "none",
            max_retries=0,
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS),
        )

    def without_key(self) -> int | Unknown:
        """The HTTP status of a request that shows no key."""
        try:
            return self._get(f"{self._url}/models", timeout=CONNECT_SECONDS).status_code
        except self._errors as error:
            return self._unknown(error)

    def models(self) -> tuple[str, ...] | Unknown:
        """The names of what is served."""
        try:
            return tuple(model.id for model in self._client.models.list())
        except self._errors as error:
            return self._unknown(error)

    def ask(
        self,
        prompt: str,
        max_tokens: int,
        *,
        stream: bool = False,
        thinking: bool | None = None,
        tools: bool = False,
    ) -> Answer | Unknown:
        """One question at temperature 0."""
        more: dict[str, Any] = {}
        if thinking is not None:
            more["extra_body"] = {"chat_template_kwargs": {"enable_thinking": thinking}}
        if tools:
            more["tools"] = [TOOL]
        try:
            found = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
                temperature=0,
                stream=stream,
                **more,
            )
            return _streamed(found) if stream else _whole(found)
        except self._errors as error:
            return self._unknown(error)

    def _unknown(self, error: Exception) -> Unknown:
        if isinstance(error, self._locked):
            return Unknown(OTHER_KEY if self._key else A_KEY)
        cause = error.__cause__
        text = f"{error} ({cause})" if cause and str(cause) not in str(error) else str(error)
        return Unknown((text.replace(self._key, "<the key>") if self._key else text)[:300])


def _whole(found: Any) -> Answer:
    choice = found.choices[0]
    message = choice.message
    tools = tuple((call.function.name, call.function.arguments) for call in message.tool_calls or [])
    return Answer(message.content or "", _reasoning(message), tools, choice.finish_reason or "")


def _streamed(chunks: Iterable[Any]) -> Answer:
    content, reasoning, finish = "", "", ""
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += _reasoning(choice.delta)
            finish = choice.finish_reason or finish
    return Answer(content, reasoning, (), finish)


def _reasoning(message: Any) -> str:
    """vLLM's own field; its earlier releases called it reasoning_content."""
    extra: Mapping[str, Any] = message.model_extra or {}
    return str(extra.get("reasoning") or extra.get("reasoning_content") or "")


def arguments_of(written: str) -> Mapping[str, object] | None:
    """A tool call's arguments, if they are a JSON object."""
    try:
        found = json.loads(written)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
