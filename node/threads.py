"""Blocking calls beside an event loop, in threads that never hold up the end of the program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


async def in_thread(function: Callable[..., Value], *arguments: object) -> Value:
    """Like asyncio.to_thread, but a call that hangs at exit is left behind: asyncio's own pool would be waited for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Value] = loop.create_future()

    def settle(value: Value | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: Value | None = None
        failure: BaseException | None = None
        try:
            value = function(*arguments)
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:
            pass  # the loop has closed: nobody waits for this any more

    threading.Thread(target=work, daemon=True).start()
    return await future
