"""HTTP as these cases need it: an answer, the lack of one, or the end of a stream; never an exception."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass
from typing import Any

MODEL = "tiny"
ENDLESS = {"max_tokens": 20000, "chat_template_kwargs": {"loop": True}}


@dataclass(frozen=True)
class Reply:
    """What came back; status 0 with the reason as text when nothing whole did."""

    status: int
    text: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[str]:
        """The events of a stream."""
        return [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: ")]


def request(address: tuple[str, int], path: str, body: object = None, seconds: float = 30, key: str = "") -> Reply:
    """One request; POST when there is a body."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(*address, timeout=seconds)
    parts: list[bytes] = []
    status = 0
    try:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        status = response.status
        while part := response.read1(65536):
            parts.append(part)
            if time.monotonic() - began > seconds:
                raise TimeoutError("timed out")
        return Reply(status, b"".join(parts).decode(), time.monotonic() - began)
    except (OSError, http.client.HTTPException) as error:
        got = b"".join(parts).decode()
        return Reply(0, f"{got}\n{type(error).__name__}: {error}" if got else f"{error}", time.monotonic() - began)
    finally:
        connection.close()


def chat(address: tuple[str, int], seconds: float = 30, **more: object) -> Reply:
    """One chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, **more}
    return request(address, "/v1/chat/completions", body, seconds)


class Background:
    """A chat completion on its way in a thread, as a client of its own."""

    def __init__(self, address: tuple[str, int], seconds: float = 60, **more: object) -> None:
        self.reply: Reply | None = None

        def run() -> None:
            self.reply = chat(address, seconds, **more)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self, seconds: float) -> Reply:
        """Its reply; status 0 and the word "open" when it still waits then."""
        self.thread.join(seconds)
        return self.reply or Reply(0, "open", seconds)


def metrics(address: tuple[str, int]) -> dict[str, float]:
    """The engine's own metrics, without labels; those that have more than the usual labels are summed."""
    values: dict[str, float] = {}
    for line in request(address, "/metrics", seconds=5).text.splitlines():
        if line.startswith("vllm:"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values
