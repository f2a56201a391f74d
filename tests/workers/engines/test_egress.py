"""The egress proxy alone. It connects to loopback only because the tests configure it."""

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from tests.workers.engines.upstreams import NAME, to_loopback
from workers.engines.contract import EgressPolicy, NetworkRecord
from workers.engines.network import addresses, egress
from workers.engines.network.egress import EgressProxy, EgressResolver


@pytest.fixture
def proxy_for(upstream):
    proxies = []

    def make(*allow, resolver=None, max_bytes=1 << 20):
        proxy = EgressProxy(
            EgressPolicy(allow or (f"{NAME}:{upstream.port}",), max_bytes),
            resolver or to_loopback(**{NAME: ["127.0.0.1"]}),
        )
        proxies.append(proxy)
        return proxy

    yield make
    for proxy in proxies:
        proxy.finish()


def ask(proxy, data):
    """Send this as one client; return the client's socket."""
    ours, theirs = socket.socketpair()
    ours.sendall(data)  # before the proxy's time for a request begins
    proxy.serve(theirs)
    ours.settimeout(10)
    return ours


def answer(end):
    with end:
        data = b""
        with contextlib.suppress(OSError):
            while chunk := end.recv(65536):
                data += chunk
    return data.decode()


def connect(proxy, authority, more=b""):
    return ask(proxy, f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + more)


def read_until(end, word):
    data = b""
    while word not in data:
        data += end.recv(65536)
    return data


def test_an_allowed_name_is_reached_and_counted(proxy_for, upstream):
    proxy = proxy_for()
    end = connect(proxy, f"{NAME}:{upstream.port}")
    assert b"200" in read_until(end, b"hello\n")
    end.sendall(b"x" * 1000)
    assert len(read_until(end, b"x" * 1000)) == 1000
    end.close()
    (record,) = finished(proxy)
    assert record == NetworkRecord(NAME, upstream.port, "allowed", "127.0.0.1", 1000, 1006, None)


def finished(proxy, count=1):
    """The records, once that many connections have ended by themselves."""
    end = time.monotonic() + 5
    while len(proxy._records) < count and time.monotonic() < end:
        time.sleep(0.01)
    return proxy.finish()


def test_bytes_right_behind_the_request_are_not_lost(proxy_for, upstream):
    end = connect(proxy_for(), f"{NAME}:{upstream.port}", b"early")
    assert b"early" in read_until(end, b"early")
    end.close()


@pytest.mark.parametrize(
    "authority", ["other.example:443", f"{NAME}:22", "127.0.0.1:5432", "169.254.169.254:80", "[::1]:443"]
)
def test_what_is_not_on_the_list_is_refused(proxy_for, upstream, authority):
    proxy = proxy_for()
    assert "403" in answer(connect(proxy, authority))
    (record,) = finished(proxy)
    assert (record.verdict, record.reason, record.address) == ("refused", "not_on_the_list", None)
    assert upstream.came == []


@pytest.mark.parametrize("found", [["127.0.0.1"], ["10.1.2.3"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], []])
def test_a_name_that_leads_inside_is_refused(proxy_for, upstream, found):
    resolver = EgressResolver(resolve=lambda *_: found, is_public=addresses.is_public)
    proxy = proxy_for(resolver=resolver)
    assert "403" in answer(connect(proxy, f"{NAME}:{upstream.port}"))
    (record,) = finished(proxy)
    assert (record.verdict, record.reason) == ("refused", "private_address")
    assert upstream.came == []


def test_loopback_is_refused_unless_a_test_says_otherwise(proxy_for, upstream):
    proxy = proxy_for(f"127.0.0.1:{upstream.port}", "localhost:443", resolver=EgressResolver())
    assert "403" in answer(connect(proxy, f"127.0.0.1:{upstream.port}"))
    assert upstream.came == []


def test_a_name_is_resolved_once_and_that_answer_is_used(proxy_for, upstream):
    asked = []

    def resolve(name, port):
        asked.append(name)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.99"]

    end = connect(
        proxy_for(resolver=EgressResolver(resolve, lambda address: address == "127.0.0.1")), f"{NAME}:{upstream.port}"
    )
    read_until(end, b"hello\n")
    end.close()
    assert asked == [NAME]


@pytest.mark.parametrize("second", ["127.0.0.2", "169.254.169.254", "10.0.0.1", "::1", "fd00::1", "64:ff9b::7f00:1"])
def test_a_name_that_leads_elsewhere_the_second_time_is_refused(proxy_for, upstream, second):
    answers = iter([["127.0.0.1"], [second], ["127.0.0.1", second]])

    def is_public(address):
        return address == "127.0.0.1" or addresses.is_public(address)

    proxy = proxy_for(resolver=EgressResolver(lambda *_: next(answers), is_public))
    first = connect(proxy, f"{NAME}:{upstream.port}")
    read_until(first, b"hello\n")
    for _ in range(2):
        assert "403" in answer(connect(proxy, f"{NAME}:{upstream.port}"))
    first.close()
    found = sorted((record.verdict, record.reason) for record in finished(proxy, 3))
    assert found == [("allowed", None), ("refused", "private_address"), ("refused", "private_address")]
    assert len(upstream.came) == 1


def test_a_name_that_does_not_exist_is_unreachable(proxy_for):
    proxy = proxy_for("gone.example")
    assert "502" in answer(connect(proxy, "gone.example:443"))
    (record,) = finished(proxy)
    assert (record.verdict, record.reason) == ("unreachable", "name_not_found")


def test_an_address_that_does_not_answer_is_unreachable(proxy_for):
    with socket.socket() as deaf:  # no other process gets its port
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        proxy = proxy_for(f"{NAME}:{port}")
        assert "502" in answer(connect(proxy, f"{NAME}:{port}"))
    (record,) = finished(proxy)
    assert (record.verdict, record.reason) == ("unreachable", "no_connection")


@pytest.mark.parametrize("method", ["GET", "POST", "connect", "OPTIONS"])
def test_only_connect_is_served(proxy_for, upstream, method):
    proxy = proxy_for()
    received = answer(ask(proxy, f"{method} http://{NAME}:{upstream.port}/x HTTP/1.1\r\n\r\n".encode()))
    assert received.startswith("HTTP/1.1 405 ")
    assert "Allow: CONNECT" in received
    assert "Only CONNECT is supported" in received
    (record,) = finished(proxy)
    assert (record.name, record.port, record.verdict, record.reason) == (NAME, upstream.port, "refused", "not_connect")
    assert upstream.came == []


@pytest.mark.parametrize(
    "request_line",
    [b"CONNECT\r\n\r\n", b"CONNECT nonsense HTTP/1.1\r\n\r\n", b"CONNECT a:443 HTTP/2\r\n\r\n", b"\xff\xfe\r\n\r\n", b"\r\n\r\n",
     b"CONNECT " + b"a" * 9000],
)  # fmt: skip
def test_nonsense_gets_an_answer(proxy_for, request_line):
    assert answer(ask(proxy_for(), request_line)).split()[1] in {"400", "405"}


def test_a_slow_request_is_given_up(proxy_for, monkeypatch):
    monkeypatch.setattr(egress, "_REQUEST_SECONDS", 0.2)
    # A thread that reads the first part late would answer 400: by this clock it is never late.
    monkeypatch.setattr(egress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    end = ask(proxy_for(), b"CONNECT a")
    assert answer(end) == ""


def test_bytes_are_capped_over_all_connections(proxy_for, upstream):
    proxy = proxy_for(max_bytes=3000)
    first = connect(proxy, f"{NAME}:{upstream.port}")
    read_until(first, b"hello\n")
    with contextlib.suppress(OSError):  # the proxy may close before it has read all
        first.sendall(b"x" * 100_000)
    assert len(answer(first)) < 3000
    assert "403" in answer(connect(proxy, f"{NAME}:{upstream.port}"))
    assert [record.reason for record in finished(proxy, 2)] == ["byte_limit", "byte_limit"]


def test_connections_are_capped(proxy_for, upstream, monkeypatch):
    monkeypatch.setattr(egress, "MAX_CONNECTIONS", 3)
    proxy = proxy_for()
    held = [connect(proxy, f"{NAME}:{upstream.port}") for _ in range(3)]
    for end in held:
        read_until(end, b"hello\n")
    refused, theirs = socket.socketpair()
    proxy.serve(theirs)
    assert refused.recv(10) == b""
    for end in (*held, refused):
        end.close()


def test_the_end_of_the_job_waits_for_a_connection_that_is_about_to_start(proxy_for, monkeypatch):
    """A thread that has not started cannot be joined: `finish` would raise in place of the job's result."""
    starting, may_start, ends = threading.Event(), threading.Event(), []

    class SlowThread(threading.Thread):
        def start(self):
            starting.set()
            assert may_start.wait(20)
            super().start()

    proxy = proxy_for()
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=proxy.serve, args=(theirs,))
    finishing = threading.Thread(target=lambda: ends.append(proxy.finish()))
    with ours, monkeypatch.context() as patch:
        patch.setattr(egress.threading, "Thread", SlowThread)
        serving.start()
        assert starting.wait(20)
        finishing.start()
        finishing.join(0.2)
        assert finishing.is_alive()
        may_start.set()
        for thread in (serving, finishing):
            thread.join(20)
    assert ends == [()]


def test_the_end_of_the_job_ends_its_connections(proxy_for, upstream, monkeypatch):
    monkeypatch.setattr(egress, "_LAST_SECONDS", 60.0)  # a connection that has not ended by then is not recorded
    proxy = proxy_for()
    end = connect(proxy, f"{NAME}:{upstream.port}")
    read_until(end, b"hello\n")
    (record,) = proxy.finish()
    assert (record.verdict, record.bytes_received) == ("allowed", 6)
    assert end.recv(10) == b""
    end.close()
    late, theirs = socket.socketpair()
    proxy.serve(theirs)
    assert late.recv(10) == b""
    late.close()
