"""Listens on a free port of loopback, in a thread with an event loop of its own: the frame of the tests' proxies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

HEAD_BYTES = 1 << 16  # the longest part that a stream reads up to a separator


class LoopbackListener:
    """`url` leads to it. A subclass answers each connection in `accept`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.accept(reader, writer)
        finally:
            writer.close()

    def _run(self) -> None:
        listening = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES))
        self._port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        listening.close()
        self._loop.run_until_complete(_turn())  # what has been accepted begins, so that it can end
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, RuntimeError):
                self._loop.run_until_complete(task)
        self._loop.run_until_complete(_turn())  # a closed connection ends in the next turn of the loop
        self._loop.close()


async def _turn() -> None:
    """Let the event loop turn, so that it does what is due."""
    for _ in range(3):
        await asyncio.sleep(0)
