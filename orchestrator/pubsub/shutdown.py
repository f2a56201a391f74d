"""Callbacks that run when a process is asked to stop.

An ASGI server informs its application of a shutdown only after all requests are answered. Long polls and streams must
end before that, so this module adds a callback in front of the server's own handlers of SIGTERM and SIGINT.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType

SignalHandler = Callable[[int, FrameType | None], object]


def on_shutdown(callback: Callable[[], None]) -> None:
    """Call `callback` in the running event loop when the process receives SIGTERM or SIGINT.

    The server's handler runs afterwards. A signal that has no handler keeps the system's default. Outside the main
    thread, where Python delivers no signals, the call has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        servers_handler = signal.getsignal(number)
        if callable(servers_handler):
            signal.signal(number, _chained(callback, loop, servers_handler))


def _chained(
    callback: Callable[[], None], loop: asyncio.AbstractEventLoop, next_handler: SignalHandler
) -> SignalHandler:
    """Return a signal handler that schedules the callback and then calls the next handler."""

    def handle(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback)
        next_handler(number, frame)

    return handle
