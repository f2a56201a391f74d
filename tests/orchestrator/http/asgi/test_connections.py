"""The table of connections, for addresses that no test can have on the loopback; routes; the server's own limits."""

import contextlib
import select

import pytest
from django.conf import settings
from django.urls import get_resolver
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

from orchestrator.http.asgi import connections
from orchestrator.http.asgi.body_limit import body_limit
from orchestrator.http.asgi.connections import ConnectionTable, client_network
from orchestrator.http.asgi.long_poll import LONG_POLLS
from orchestrator.http.asgi.sync_handler import hashes_a_password
from tests.live_server import eventually, serving
from tests.orchestrator.http.asgi.test_request_heads import KEY, peak_kilobytes
from tests.orchestrator.http.asgi.wire import connect, is_closed, pour, read_response, request


class Connection:
    def __init__(self):
        self.is_evicted = False

    def evict(self):
        self.is_evicted = True


def opened(table, address, number):
    made = [Connection() for _ in range(number)]
    return made, [table.admit(one, address) for one in made]


def test_an_address_has_so_many_connections_and_others_theirs():
    table = ConnectionTable(100, 3)
    first, reasons = opened(table, "192.0.2.1", 4)
    assert reasons == [None, None, None, "address_limit"]
    assert opened(table, "192.0.2.2", 1)[1] == [None]
    table.remove(first[0])
    table.remove(first[0])
    assert opened(table, "192.0.2.1", 2)[1] == [None, "address_limit"]


def test_an_ipv6_client_has_one_network_and_a_mapped_address_is_the_old_one():
    table = ConnectionTable(100, 2)
    assert [opened(table, f"2001:db8::{n}", 1)[1][0] for n in range(3)] == [None, None, "address_limit"]
    assert opened(table, "2001:db8:0:1::1", 1)[1] == [None]
    assert client_network("::ffff:192.0.2.1") == client_network("192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", None, "", "unix"])
def test_loopback_and_sockets_without_an_address_are_bounded_in_all_only(address):
    table = ConnectionTable(5, 2)
    assert opened(table, address, 5)[1] == [None] * 5


def test_the_oldest_idle_connection_gives_way_and_none_with_a_request():
    table = ConnectionTable(3, None)
    (one, two, three), _ = opened(table, "192.0.2.1", 3)
    table.begin_request(one)
    table.begin_request(three)
    assert opened(table, "192.0.2.2", 1)[1] == [None]
    assert (one.is_evicted, two.is_evicted, three.is_evicted) == (False, True, False)
    table.end_request(one)  # idle for a shorter time than the newest
    (newest,), reasons = opened(table, "192.0.2.3", 1)
    assert (reasons, one.is_evicted, len(table)) == ([None], False, 3)
    table.begin_request(newest)
    assert opened(table, "192.0.2.4", 1)[1] == [None]
    assert one.is_evicted
    assert len(table) == 3


def test_a_table_of_busy_connections_refuses():
    table = ConnectionTable(2, None)
    busy, _ = opened(table, "192.0.2.1", 2)
    for one in busy:
        table.begin_request(one)
    assert opened(table, "192.0.2.2", 1)[1] == ["connection_limit"]
    assert len(table) == 2


def test_connections_leave_files_for_other_things(monkeypatch):
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (1024, 4096))
    asked = []
    monkeypatch.setattr(connections.resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert connections.connections_within_file_limit(4096) == 768
    assert connections.connections_within_file_limit(100) == 100
    connections.raise_file_limit(4096)
    connections.raise_file_limit(100)
    assert asked == [(4096, 4096)]


def test_the_table_of_long_polls_is_that_of_the_views():
    found = set()

    def walk(patterns, prefix):
        for pattern in patterns:
            path = prefix + str(pattern.pattern)
            if hasattr(pattern, "url_patterns"):
                walk(pattern.url_patterns, path)
            elif getattr(pattern.callback, "is_long_poll", False):
                found.add(f"/{path}")

    walk(get_resolver().url_patterns, "")
    assert found == set(LONG_POLLS)
    assert all(body_limit("POST", path) <= 64 << 10 for path in found)


def test_limits_by_path_are_found():
    assert body_limit("POST", "/admin/login/") == 8192
    assert body_limit("POST", "/v1/runtime/jobs") == settings.BODY_LIMIT_BYTES
    assert body_limit("POST", "/v1/runtime/leases/rtl_x/heartbeat") == settings.BODY_LIMIT_BYTES
    assert body_limit("GET", "/v1/runtime/jobs") == 4096
    assert body_limit("PUT", "/v2/adapter/manifests/v1") == 10_000_000


@pytest.mark.parametrize("path", ["adapter/blobs/uploads", "adapter/blobs/uploads/", "adapter/blobs/uploads/x"])
def test_uploads_have_their_own_limit(path):
    assert body_limit("PATCH", f"/v2/{path}") == settings.IMAGE_UPLOAD_LIMIT_BYTES
    assert body_limit("GET", f"/v2/{path}") == 4096


@pytest.mark.parametrize(
    "path",
    [
        "a/blobs/uploads/b/manifests/c",
        "a/b/blobs/uploads/",
        "/blobs/uploads/",
        "a/blobs/uploadsx",
    ],
)
def test_a_path_that_only_resembles_an_upload_has_not(path):
    """A view that parses its body would keep it in memory."""
    assert body_limit("PUT", f"/v2/{path}") == 10_000_000
    assert hashes_a_password("POST", "/admin/auth/user/1/password/")
    assert not hashes_a_password("GET", "/login/")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    environment = {"RESPONSE_STALL_SECONDS": "1", "WEBSOCKET_MESSAGE_BYTES": "100000", "MAX_CONNECTIONS": "10"}
    with serving(
        tmp_path_factory.mktemp("own"), app="tests.orchestrator.http.asgi.application:application", **environment
    ) as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.mark.slow
def test_a_websocket_has_a_limit_for_messages(server):
    with websocket(f"ws://127.0.0.1:{server.address[1]}/echo", compression=None) as line:
        line.send("x" * 100_000)
        assert line.recv(10) == "100000"
        line.send("x" * 100_001)
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(10)
        assert closed.value.rcvd.code == 1009


@contextlib.contextmanager
def handshake(server):
    with connect(server, 20) as line:
        line.sendall(request("Upgrade: websocket", *KEY, path="/echo") + b"\r\n")
        assert read_response(line)[0] == 101
        yield line


def masked(opcode, payload=b"", *, final):
    return bytes([opcode | (0x80 if final else 0), 0x80 | len(payload)]) + bytes(4) + payload


@pytest.mark.slow
@pytest.mark.parametrize(
    "frame", [masked(0, b"", final=False), masked(9, b"x" * 100, final=True)], ids=["fragments", "pings"]
)
def test_frames_without_end_are_cut_off(server, frame):
    before = peak_kilobytes(server)
    with handshake(server) as line:
        line.sendall(masked(1, b"x", final=False))
        assert pour(line, frame * 1000, 2000) < 2000
    assert peak_kilobytes(server) - before < 30_000


@pytest.mark.slow
def test_websockets_count_as_connections_and_leave_the_table(server):
    with contextlib.ExitStack() as open_lines:
        for _ in range(10):
            open_lines.enter_context(handshake(server))
        with connect(server) as refused:
            pour(refused, request() + b"\r\n", 1)
            assert read_response(refused)[0] in {0, 503}

    def again():
        with contextlib.suppress(AssertionError), handshake(server):
            return True
        return False

    eventually(again)


@pytest.mark.slow
def test_a_client_that_reads_nothing_of_its_response_is_cut_off(server):
    before = peak_kilobytes(server)
    with connect(server, 30) as line:
        line.sendall(request(path="/flood") + b"\r\n")
        eventually(lambda: _is_reset(line), 20)
        assert is_closed(line)
    assert peak_kilobytes(server) - before < 20_000


def _is_reset(line):
    """Ask the kernel, because reading would let the response continue."""
    poll = select.poll()
    poll.register(line, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
