"""Dummy sockets of the `restricted` engine against a job that shuts one down while it connects it."""

import errno
import os
import socket

from workers.engines.contract import EgressPolicy
from workers.engines.network.egress import EgressProxy
from workers.engines.network.fake_sockets import FakeSockets
from workers.engines.tracing.seccomp_notify import SyscallRequest


def test_a_socket_that_is_shut_down_while_it_is_connected_is_refused(monkeypatch):
    """An exception would end the thread that answers all calls of the job."""
    fake_sockets = FakeSockets(EgressProxy(EgressPolicy(("example.test",))))
    try:
        response = fake_sockets.open(
            SyscallRequest(1, os.getpid(), "socket", (socket.AF_INET, socket.SOCK_STREAM, 0, 0, 0, 0))
        )
        inode = os.fstat(response.descriptor).st_ino
        real = fake_sockets._endpoints

        class Racing(dict):
            def get(self, key, default=None):
                found = real.get(key, default)
                fake_sockets._endpoints = real
                fake_sockets._detach(key).close()  # what `_drain` does at the end of the job's data
                return found

        fake_sockets._endpoints = Racing()
        address = bytearray(b"\2\0" + (3128).to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8))
        monkeypatch.setattr(SyscallRequest, "memory", lambda *_: bytes(address))
        request = SyscallRequest(2, os.getpid(), "connect", (response.descriptor, 0, 16, 0, 0, 0))
        assert inode in real
        assert fake_sockets.connect(request).error == errno.EPIPE
        os.close(response.descriptor)
    finally:
        fake_sockets.close()
