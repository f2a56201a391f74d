"""Attacks on the real server by WebSocket handshakes that are none: nothing may hold a connection without a limit."""

import pytest

from tests.live_server import eventually, serving
from tests.orchestrator.http.asgi.test_request_heads import KEY
from tests.orchestrator.http.asgi.wire import connect, is_closed, problem_on, read_response, request

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
HANDSHAKE = ("Upgrade: websocket", *KEY)


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    # Longer than a test waits: what is closed until then was refused, and did not run out of time.
    limits = {"HEADER_SECONDS": "60", "BODY_SECONDS": "60"}
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=database_url, **limits) as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.mark.parametrize(
    ("method", "lines", "body"),
    [
        ("GET", ["Content-Length: 5"], b"hello"),
        ("POST", ["Content-Length: 5"], b"hello"),
        ("POST", ["Content-Length: 100000000000000000"], b"x"),
        ("GET", ["Transfer-Encoding: chunked"], b"1\r\nx\r\n"),
        ("POST", [], b""),
    ],
    ids=["get with a body", "post with a body", "body without end", "chunked", "post"],
)
def test_a_handshake_that_is_none_is_refused_at_once(server, method, lines, body):
    with connect(server, seconds=3) as line:
        line.sendall(request(*HANDSHAKE, *lines, method=method, path="/login/") + b"\r\n" + body)
        assert problem_on(line) == (400, "invalid")
        assert is_closed(line)


def test_an_empty_body_is_none(server):
    with connect(server, seconds=3) as line:
        line.sendall(request(*HANDSHAKE, "Content-Length: 0", path="/nowhere") + b"\r\n")
        assert problem_on(line) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "lines"), [("/" + "x" * 9_000, []), ("/", ["X-Long: " + "x" * 9_000])], ids=["path", "header"]
)
def test_a_handshake_above_the_limits_of_the_websocket_library_is_refused(server, path, lines):
    with connect(server, seconds=3) as line:
        line.sendall(request(*HANDSHAKE, *lines, path=path) + b"\r\n")
        assert read_response(line)[0] in {400, 404, 414, 431}
        assert is_closed(line)


def test_a_handshake_behind_a_request_does_not_take_its_response(server):
    with connect(server, seconds=3) as line:
        line.sendall(request(path="/readyz") + b"\r\n" + request(*HANDSHAKE) + b"\r\n")
        assert read_response(line)[0] in {200, 503}
        assert is_closed(line)


def test_a_refused_handshake_is_one_quiet_line_of_log(server):
    before = len(server.log().splitlines())
    for number in range(3):
        with connect(server, seconds=3) as line:
            line.sendall(request(*HANDSHAKE, path=f"/secret-{number}") + b"\r\n")
            assert problem_on(line) == (404, "not_found")
            assert is_closed(line)
    eventually(lambda: server.log().count(" 404 ") >= 3)
    lines = server.log().splitlines()[before:]
    assert len(lines) == 3, lines
    assert all("INFO orchestrator.access GET unmatched 404" in found for found in lines), lines
