"""Hands SIGTERM and SIGINT to a thread of their own: what a handler in the main thread may safely do is next to
nothing, since it may interrupt the very code that holds the lock it needs."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def handled(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """While inside, call `first` for the first stopping signal and `second` for every further one. Main thread only."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(0)  # the interpreter wants it so
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
        theirs.close()  # the listener reads its end and leaves
        listener.join()
        ours.close()


def _listen(ours: socket.socket, first: Callable[[], None], second: Callable[[], None]) -> None:
    react = first
    while number := ours.recv(1):
        if number[0] in STOPPING:
            react()
            react = second
