"""An engine's API that passes every gate, and can be told to fail each: for tests of the gates."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = Mapping[str, Any]
Reply = tuple[int, "dict[str, Any] | str"]
"""Status, and the message of the completion, the whole body of a refusal, or a whole text."""


def text_of(body: Body) -> str:
    """All that was said to the model."""
    parts = []
    for message in body["messages"]:
        content = message["content"]
        parts += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return "\n".join(parts)


def thinking(body: Body) -> bool | None:
    value: bool | None = body.get("chat_template_kwargs", {}).get("enable_thinking")
    return value


def good(body: Body) -> Reply:
    """What an engine and a model answer with which nothing is wrong."""
    said = text_of(body)
    if body.get("tools"):
        function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
        return 200, {"content": None, "tool_calls": [{"type": "function", "function": function}]}
    code = re.search(r"The code of the lighthouse is (\d+)\.", said)
    message: dict[str, Any] = {"content": code[1] if code else "It is 391."}
    if thinking(body) is not False:
        message["reasoning"] = "Seventeen times twenty-three."
    return 200, message


class GateEngine:
    """Serves on a port of the loopback device. `with` it."""

    def __init__(self, reply: Callable[[Body], Reply] = good) -> None:
        self.reply = reply
        self.key = ""
        self.bodies: list[Body] = []
        self.marks: list[str] = []
        self.hang = threading.Event()
        """Not set: what `hangs` names waits."""
        self.hangs: Callable[[Body], bool] = lambda body: False
        self.tokens_per_character: float | None = 0.25
        self.counts: str | None = None
        """What /tokenize says instead of a count."""
        self.max_model_len = 32768
        self.metrics: dict[str, float] = {"vllm:prefix_cache_hits_total": 0, "vllm:prefix_cache_queries_total": 0}
        self.keeps_prefixes = True
        self.others = 0
        """Requests of others, whose tokens move with every look."""
        self.gone = 0
        """Requests whose client left while they hung."""
        self._lock = threading.Lock()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.tick()
                text = "".join(f'{name}{{engine="0"}} {value}\n' for name, value in engine.metrics.items())
                self._send(200, text.encode() if self.path == "/metrics" else b"")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if engine.key and self.headers["Authorization"] != f"Bearer {engine.key}":
                    self._send(401, b'{"error":"Unauthorized"}')
                elif self.path == "/tokenize":
                    self._tokenize(body)
                else:
                    self._complete(body)

            def _tokenize(self, body: Body) -> None:
                if engine.counts is not None:
                    self._send(200, engine.counts.encode())
                    return
                if engine.tokens_per_character is None:
                    self._send(404, b'{"detail":"Not Found"}')
                    return
                count = int(len(body["prompt"]) * engine.tokens_per_character)
                self._send(200, json.dumps({"count": count, "max_model_len": engine.max_model_len}).encode())

            def _complete(self, body: Body) -> None:
                with engine._lock:
                    engine.bodies.append(body)
                    engine.marks.append(str(self.headers["X-Request-Id"]))
                    engine.metrics["vllm:prefix_cache_queries_total"] = len(engine.bodies)
                if engine.hangs(body):
                    while not engine.hang.wait(0.02):
                        self.connection.setblocking(False)
                        try:
                            if not self.connection.recv(1):
                                engine.gone += 1
                                self.close_connection = True
                                return
                        except BlockingIOError:
                            pass
                    self.connection.setblocking(True)
                if engine.keeps_prefixes and len(body["messages"]) > 1:
                    engine.metrics["vllm:prefix_cache_hits_total"] += 32
                status, message = engine.reply(body)
                if isinstance(message, str):
                    self._send(status, message.encode())
                    return
                usage = {"prompt_tokens": 10, "completion_tokens": 3}
                choice = {"message": message, "finish_reason": message.pop("finish", "stop")}
                answer = {"choices": [choice], "usage": usage} if status == 200 else message
                self._send(status, json.dumps(answer).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that left

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def tick(self) -> None:
        """Others' requests go on."""
        if self.others:
            moved = self.metrics.get("vllm:generation_tokens_total", 0.0)
            self.metrics["vllm:generation_tokens_total"] = moved + self.others
            self.metrics["vllm:num_requests_running"] = self.others

    def __enter__(self) -> GateEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
