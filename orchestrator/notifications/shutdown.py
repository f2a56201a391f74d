"""Hear in time that the process shall end: an ASGI server tells its application only when all have been answered."""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType


def on_shutdown(say: Callable[[], None]) -> None:
    """Call `say` in the running loop when the process is asked to stop, and let the server do what it does then. Where
    the server left a signal to the system, so do we; outside the main thread nobody hears signals."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _then(before, loop, say))


def _then(
    before: Callable[[int, FrameType | None], object], loop: asyncio.AbstractEventLoop, say: Callable[[], None]
) -> Callable[[int, FrameType | None], None]:
    def told(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(say)
        before(number, frame)

    return told
