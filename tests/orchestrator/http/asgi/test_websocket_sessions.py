"""Sessions over the real server, with a real client: routes, limits, control frames, the ends of a connection."""

import contextlib
import signal

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as websocket

from orchestrator.http.asgi.router import Router
from orchestrator.http.asgi.server import uvicorn_options
from tests.live_server import serving

pytestmark = pytest.mark.slow
APPLICATION = "tests.orchestrator.http.asgi.application:application"
ENVIRONMENT = {"WEBSOCKET_MESSAGE_BYTES": "100000"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("sessions"), app=APPLICATION, **ENVIRONMENT) as found:
        yield found
        assert "Traceback" not in found.log()


def joined(server, path="/rooms/blue/echo"):
    return websocket(f"ws://127.0.0.1:{server.address[1]}{path}", compression=None, ping_interval=None)


def ends(line):
    """The Close frame that ends the connection, or None."""
    try:
        while True:
            line.recv(20)
    except ConnectionClosed as closed:
        return closed.rcvd


def test_a_route_has_parameters(server):
    with joined(server) as line:
        line.send("four")
        assert line.recv(20) == "blue 4"


@pytest.mark.parametrize(
    "path", ["/rooms/echo", "/rooms//echo", "/rooms/a/b/echo", "/rooms/blue/echo/", "/room/x/echo"]
)
def test_another_path_is_404(server, path):
    with pytest.raises(InvalidStatus) as refused:
        joined(server, path)
    assert refused.value.response.status_code == 404


def test_a_close_frame_has_code_and_reason(server):
    with joined(server) as line:
        line.send("close")
        found = ends(line)
        assert (found.code, found.reason) == (1000, "on demand")


def test_a_dropped_connection_has_no_close_frame(server):
    with joined(server) as line:
        line.send("drop")
        assert ends(line) is None


def test_a_route_has_its_own_limit_of_messages(server):
    with joined(server) as line:
        line.send("x" * 200_000)
        assert line.recv(20) == "blue 200000"
        line.send("x" * 200_001)
        assert ends(line).code == 1009


def test_too_many_fragments_end_the_connection(server):
    with joined(server) as line, contextlib.suppress(ConnectionClosed):
        line.send(["x"] * 10_000)
        assert ends(line) is None


def test_a_message_may_arrive_byte_by_byte(server):
    with joined(server) as line:
        line.send(["x"] * 100)
        assert line.recv(20) == "blue 100"


def test_an_operation_answers_later(server):
    with joined(server) as line:
        line.send("sleep")
        assert line.recv(20) == "slept"


def test_the_session_learns_of_a_ping_before_its_timer(server):
    with joined(server) as line:
        line.ping("x").wait(20)
        line.send("timer")
        assert line.recv(20) == "time 1"
        line.send("timer")
        assert line.recv(20) == "time 1"


def test_the_server_sends_no_ping():
    assert uvicorn_options()["ws_ping_interval"] is None


def test_sigterm_closes_every_session_with_1001(tmp_path):
    with serving(tmp_path, app=APPLICATION, **ENVIRONMENT) as server, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(joined(server)) for _ in range(5)]
        lines[0].send("sleep")
        for line in lines[1:]:
            line.send("x")
            line.recv(20)
        server.process.send_signal(signal.SIGTERM)
        for line in lines:
            found = ends(line)
            assert (found.code, found.reason) == (1001, "server shutting down")
        server.process.wait(20)
        assert "Traceback" not in server.log()


def test_a_pattern_is_literal_but_for_its_parameters():
    async def application(_scope, _receive, _send):
        raise AssertionError

    router = Router(requests=application, long_polls=application, websockets={"/a.b/{one}/c/{two}": application})
    ((pattern, route, _),) = router.websockets
    assert route == "/a.b/{one}/c/{two}"
    assert pattern.fullmatch("/a.b/1/c/2+").groupdict() == {"one": "1", "two": "2+"}
    for path in ("/axb/1/c/2", "/a.b/1/c/", "/a.b/1/2/c/3", "/a.b/1/c/2/"):
        assert not pattern.fullmatch(path)
