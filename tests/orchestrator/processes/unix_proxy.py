"""A proxy in front of PostgreSQL's socket that can cut the connections through it without closing them."""

import contextlib
import socket
import threading
from pathlib import Path

NAME = ".s.PGSQL.5432"


class UnixProxy:
    """Listens in `folder` and forwards to the server's socket. `cut()`: nothing passes any more, nothing is closed."""

    def __init__(self, folder: Path, server: Path) -> None:
        self._server = server
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / NAME))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._flows.clear()

    def restore(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.restore()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server / NAME))
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
        self._flows.wait()  # also after a reset: a process that was killed had not read everything
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
