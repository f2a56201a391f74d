"""The listening sockets of a web process during a burst of connections."""

import asyncio
import socket
import struct
from pathlib import Path

import pytest
import uvicorn

from orchestrator.http.asgi.server import GracefulServer, uvicorn_options

TCP_INFO_BACKLOG = 28  # offset of `tcpi_sacked`, which is the limit of the accept queue on a listening socket


async def never(_scope, _receive, _send):
    raise AssertionError


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def started(listener, check):
    async def scene():
        server = GracefulServer(uvicorn.Config(**uvicorn_options(app=never)))
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listener])
        try:
            check(server)
        finally:
            for serving in server.servers:
                serving.close()

    asyncio.run(scene())


def test_the_accept_queue_is_as_long_as_the_kernel_allows(listener):
    def check(server):
        info = server.servers[0].sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        limit = int(Path("/proc/sys/net/core/somaxconn").read_text())
        assert struct.unpack_from("I", info, TCP_INFO_BACKLOG)[0] == min(65_535, limit)

    started(listener, check)
