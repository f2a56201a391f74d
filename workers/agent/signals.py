"""Handles SIGTERM and SIGINT in a thread of their own.

A handler in the main thread may interrupt the very code that holds the lock that it needs.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def handled(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """Call `first` for the first stopping signal and `second` for every further one, while the context is entered.

    Use it in the main thread only.
    """
    ours, theirs = socket.socketpair()
    theirs.settimeout(0)  # set_wakeup_fd requires it
    before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(ours, first, second), name="signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        theirs.close()  # ends the listener
        listener.join()
        ours.close()


def _listen(ours: socket.socket, first: Callable[[], None], second: Callable[[], None]) -> None:
    react = first
    while number := ours.recv(1):
        if number[0] in STOPPING:
            react()
            react = second
