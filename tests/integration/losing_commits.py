"""Between a server and its PostgreSQL: a socket that can lose the answer to a COMMIT."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

NAME = ".s.PGSQL.5432"


class Wire:
    """`lose_next()`: the next COMMIT reaches PostgreSQL, and its connection ends before the answer."""

    def __init__(self, folder: Path, real: Path) -> None:
        self._real = str(real / NAME)
        self._losing = threading.Event()
        self.lost = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / NAME))
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next(self) -> None:
        self._losing.set()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=[caller], daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        server, ready = socket.socket(socket.AF_UNIX), selectors.DefaultSelector()
        with caller, server, ready, contextlib.suppress(OSError):
            server.connect(self._real)
            ready.register(caller, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, caller)
            while self._pass_on(ready, caller, server):
                pass

    def _pass_on(self, ready: selectors.DefaultSelector, caller: socket.socket, server: socket.socket) -> bool:
        for key, _ in ready.select():
            assert isinstance(key.fileobj, socket.socket)
            piece = key.fileobj.recv(1 << 16)
            if not piece:
                return False
            key.data.sendall(piece)
            if key.fileobj is caller and b"COMMIT" in piece and self._losing.is_set():
                self._losing.clear()
                server.recv(1 << 16)  # it is committed now, and the response is dropped
                self.lost += 1
                return False
        return True


@contextlib.contextmanager
def losing_commits(folder: Path, real: Path) -> Iterator[Wire]:
    wire = Wire(folder, real)
    try:
        yield wire
    finally:
        wire.close()
