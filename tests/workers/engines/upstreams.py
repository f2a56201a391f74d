"""A server on loopback for the way out to lead to, and the rule that lets it: nothing but a test has it."""

import contextlib
import socket
import threading

from workers.engines.network.egress import EgressResolver

NAME = "registry.example"


class Upstream:
    """An echo server on loopback; sends `hello` first."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.came = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                end, _ = self.server.accept()
                self.came.append(end)
                threading.Thread(target=self._echo, args=(end,), daemon=True).start()

    @staticmethod
    def _echo(end):
        with contextlib.suppress(OSError), end:
            end.sendall(b"hello\n")
            while data := end.recv(65536):
                end.sendall(data)

    def close(self):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for end in self.came:
            end.close()


def to_loopback(**names):
    """For tests only: these names lead to loopback, and loopback counts as public."""

    def resolve(name, port):
        if name not in names:
            raise OSError("no such name")
        return names[name]

    return EgressResolver(resolve=resolve, is_public=lambda _: True)
