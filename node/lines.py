"""A Unix socket that answers lines: how agent and keeper are spoken to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from node import wire
from node.journal import log

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def listen(path: Path, handler: Handler) -> asyncio.AbstractServer:
    """Answer every line that comes with the handler's answer. What is no request is answered as such."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer = await handler(wire.decode(line))
                except (wire.WireError, TypeError, ValueError, KeyError, OSError) as error:
                    log(f"a request failed: {error!r}", "warning")
                    answer = {"id": None, "ok": False, "error": f"bad request: {error}"}
                writer.write(wire.encode(answer))
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the other side has gone, or sent more than a line may hold
        finally:
            writer.close()

    path.unlink(missing_ok=True)
    return await asyncio.start_unix_server(client, path, limit=wire.MAX_LINE)
