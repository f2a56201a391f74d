"""A burst of connections: what is made for each of them, in which order, and how many in one turn of the loop."""

import asyncio
import contextlib
import errno
import os
import socket

import pytest

from orchestrator.http.asgi import acceptor as acceptors
from orchestrator.http.asgi.acceptor import OPENED_PER_TURN, Acceptor
from orchestrator.http.asgi.connections import SPARE_FILES, ConnectionTable

FLOOD, VICTIM = "127.0.0.2", "127.0.0.3"


class Recorder(asyncio.Protocol):
    """Writes down whose connection was opened, and registers it as the protocol of the server does."""

    def __init__(self, scene):
        self.scene = scene
        scene.made += 1

    def connection_made(self, transport):
        self.scene.opened.append(transport.get_extra_info("peername")[0])
        self.scene.table.admit(self, None)
        self.transport = transport

    def evict(self):
        self.transport.abort()


class Scene:
    """A listening socket with its acceptor, in a loop of its own. `turn` lets the loop make one turn."""

    def __init__(self, **limits):
        self.table = ConnectionTable(limits.pop("max_connections", 4000), limits.pop("max_per_address", None))
        self.limits = limits
        self.made, self.opened, self.clients = 0, [], contextlib.ExitStack()

    async def __aenter__(self):
        self.listener = self.clients.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096))
        self.address = self.listener.getsockname()
        self.acceptor = Acceptor([self.listener.dup()], lambda: Recorder(self), table=self.table, **self.limits)
        self.acceptor.start()
        return self

    async def __aexit__(self, *_):
        self.acceptor.close()
        self.clients.close()

    def connect(self, source=FLOOD):
        client = socket.create_connection(self.address, timeout=30, source_address=(source, 0))
        return self.clients.enter_context(client)

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - each pass is one turn of the loop
                await asyncio.sleep(0)


def run(scene, **limits):
    async def inside():
        async with Scene(**limits) as found:
            await scene(found)

    asyncio.run(inside())


def test_a_client_behind_a_burst_of_another_address_is_opened_in_the_first_turn():
    async def scene(server):
        for _ in range(200):
            server.connect(FLOOD)
        server.connect(VICTIM)
        await server.until(lambda: len(server.opened) == 201)
        assert VICTIM in server.opened[:2]

    run(scene)


def test_a_turn_of_the_loop_empties_the_accept_queue_and_opens_a_few():
    opened_before = []

    async def scene(server):
        for _ in range(10 * OPENED_PER_TURN):
            server.connect()
        original = server.acceptor._open_some

        def counted():
            before = server.made, server.acceptor.waiting
            original()
            opened_before.append((before, server.acceptor.waiting))

        server.acceptor._open_some = counted
        await server.until(lambda: len(server.opened) == 10 * OPENED_PER_TURN)
        (_, waiting), left = opened_before[0]
        assert (waiting, left) == (10 * OPENED_PER_TURN, 9 * OPENED_PER_TURN)
        assert [before[1] - after for before, after in opened_before] == [OPENED_PER_TURN] * 10

    run(scene)


def test_processes_that_share_a_socket_leave_connections_to_each_other():
    async def scene(server):
        for _ in range(50):
            server.connect()
        seen = []
        original = server.acceptor._open_some
        server.acceptor._open_some = lambda: (seen.append(server.acceptor.waiting), original())
        await server.until(lambda: len(server.opened) == 50)
        assert max(seen) <= OPENED_PER_TURN

    run(scene, accepted_per_turn=OPENED_PER_TURN)


def refused(client):
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(65536):
            answer += more
    return answer


def test_a_refused_connection_makes_no_protocol_and_gets_a_problem_document(monkeypatch):
    monkeypatch.setattr(acceptors, "client_network", lambda address: address)  # loopback has no limit otherwise
    acceptors._source.cache_clear()

    async def scene(server):
        clients = [server.connect() for _ in range(5)]
        await server.until(lambda: len(server.opened) == 3)
        answers = [await asyncio.to_thread(refused, client) for client in clients[3:]]
        assert server.made == 3
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b'"code": "too_many_connections"' in answer
        assert answers[0] != answers[1], "each response has a request id of its own"
        server.connect(VICTIM)
        await server.until(lambda: server.opened[-1] == VICTIM)

    try:
        run(scene, max_per_address=3)
    finally:
        acceptors._source.cache_clear()


def test_a_flood_beyond_all_connections_is_refused_and_another_address_takes_the_place_of_one_of_its(monkeypatch):
    monkeypatch.setattr(acceptors, "OPENED_PER_TURN", 0)  # so that all of them wait
    room = 10 + SPARE_FILES // 2

    async def scene(server):
        flood = [server.connect() for _ in range(room + 1)]
        await server.until(lambda: server.acceptor.waiting == room)
        assert (await asyncio.to_thread(refused, flood[-1])).startswith(b"HTTP/1.1 503 ")
        server.connect(VICTIM)
        assert (await asyncio.to_thread(refused, flood[-2])).startswith(b"HTTP/1.1 503 ")
        assert server.acceptor.waiting == room
        assert sorted(len(queue) for queue in server.acceptor._queues.values()) == [1, room - 1]
        assert server.made == 0

    run(scene, max_connections=10)


def test_without_free_descriptors_it_pauses_and_continues(monkeypatch, caplog):
    monkeypatch.setattr(acceptors, "RETRY_SECONDS", 0)
    failures = iter([errno.EMFILE])

    class Libc:
        def __init__(self, libc):
            self.libc = libc

        def accept4(self, *values):
            for number in failures:
                acceptors.ctypes.set_errno(number)
                return -1
            return self.libc.accept4(*values)

    monkeypatch.setattr(acceptors, "_libc", Libc(acceptors._libc))

    async def scene(server):
        server.connect()
        await server.until(lambda: server.opened == [FLOOD])

    run(scene)
    assert [record.message for record in caplog.records if record.name == acceptors.__name__] == [
        f"cannot accept connections: {os.strerror(errno.EMFILE)}"
    ]


def test_connections_that_were_not_opened_are_closed_with_the_server(monkeypatch):
    monkeypatch.setattr(acceptors, "OPENED_PER_TURN", 0)

    async def scene(server):
        client = server.connect()
        await server.until(lambda: server.acceptor.waiting == 1)
        server.acceptor.close()
        await server.acceptor.wait_closed()
        assert refused(client) == b""
        server.listener.close()
        with pytest.raises(ConnectionRefusedError):
            server.connect()

    run(scene)


@pytest.mark.parametrize(
    ("address", "turns_as", "limited_as"),
    [
        (socket.inet_pton(socket.AF_INET, "192.0.2.1"), "192.0.2.1", "192.0.2.1"),
        (socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.1"), "192.0.2.1", "192.0.2.1"),
        (socket.inet_pton(socket.AF_INET, "127.0.0.1"), "127.0.0.1", None),
    ],
)
def test_addresses_in_either_family_are_one_source(address, turns_as, limited_as):
    assert acceptors._source(address) == (socket.inet_pton(socket.AF_INET, turns_as), limited_as)


def test_an_ipv6_network_is_one_source():
    first, second = (socket.inet_pton(socket.AF_INET6, f"2001:db8:1:2::{number}") for number in (1, 2))
    assert acceptors._source(first) == acceptors._source(second) == (first[:8], "2001:0db8:0001:0002")
    assert acceptors._source(b"") == (b"", None)
