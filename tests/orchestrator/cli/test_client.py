"""The HTTP client of the command line: what is repeated, where the token goes, and how a stream continues."""

import io
import json
import threading
import time
from argparse import Namespace

import pytest

from orchestrator.cli import deadlines
from orchestrator.cli.client import READ_SECONDS, StellaClient
from orchestrator.cli.commands import CommandContext
from orchestrator.cli.connection import ServerAccess
from orchestrator.cli.deadlines import Deadline, Patience
from orchestrator.cli.errors import ApiRefusal, CommandFailed, ServerUnavailable, TimeUp
from orchestrator.cli.event_streams import StreamEvent, follow_events, parse_events
from orchestrator.cli.job_waiting import exit_code_of_job, follow_job, wait_for_end
from orchestrator.cli.output import Printer
from tests.orchestrator.cli.scripted_server import respond, scripted

TOKEN = "rto_api_test"
BUSY = json.dumps({"code": "busy", "detail": "Later."}).encode()


def client_of(server, seconds=None):
    pauses = []
    client = StellaClient(ServerAccess(server.url, TOKEN), Deadline(seconds), pause=pauses.append)
    return client, pauses


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A stream that is opened again waits for no clock."""
    monkeypatch.setattr(deadlines, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(deadlines, "MAX_PAUSE_SECONDS", 0.001)


def busy_at_first(handler, number):
    respond(handler, 503, BUSY, Retry_After="3") if number < 3 else respond(handler, 200, b'{"a": 1}')


def test_a_busy_server_is_asked_again_when_it_says(monkeypatch):
    with scripted(busy_at_first) as server:
        client, pauses = client_of(server)
        assert client.get("/x").body == {"a": 1}
    assert pauses == [3.0, 3.0]


def test_a_request_that_could_count_twice_is_sent_once():
    with scripted(busy_at_first) as server:
        client, pauses = client_of(server)
        with pytest.raises(ApiRefusal) as refused:
            client.call("PATCH", "/x", {})
    assert (refused.value.exit_code, refused.value.code, pauses) == (69, "busy", [])
    assert len(server.requests) == 1


def test_a_lost_connection_is_repeated_with_the_same_key():
    def answer(handler, number):
        if number > 1:
            respond(handler, 201, b'{"jobId": "x"}')

    with scripted(answer) as server:
        client, pauses = client_of(server)
        reply = client.call("POST", "/api/jobs", {}, headers={"Idempotency-Key": "k"}, is_repeatable=True)
    assert (reply.status, pauses) == (201, [0.5])
    assert [headers["Idempotency-Key"] for _, _, headers in server.requests] == ["k", "k"]


def test_the_token_wins_over_netrc(tmp_path, monkeypatch):
    """requests sends the password of ~/.netrc for the host, even in the place of a header that was set."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login someone password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with scripted(lambda handler, _: respond(handler, 200)) as server:
        client_of(server)[0].get("/x")
        with client_of(server)[0].download("/y") as blocks:
            list(blocks)
    assert [headers.get("Authorization") for _, _, headers in server.requests] == [f"Bearer {TOKEN}"] * 2


def test_a_redirect_to_a_signed_address_gets_no_token():
    def answer(handler, number):
        if number == 1:
            respond(handler, 302, b"", Location="/v1/objects/signed")
        else:
            respond(handler, 200, b"content")

    with scripted(answer) as server, client_of(server)[0].download("/runs/x/artifacts/a") as blocks:
        assert b"".join(blocks) == b"content"
    (_, _, first), (_, path, second) = server.requests
    assert (first["Authorization"], path) == (f"Bearer {TOKEN}", "/v1/objects/signed")
    assert "Authorization" not in second


def test_a_download_that_ends_too_early_is_no_download():
    def answer(handler, _):
        respond(handler, 200, b"half", Content_Length="8")

    with (
        scripted(answer) as server,
        pytest.raises(ServerUnavailable),
        client_of(server)[0].download("/runs/x/artifacts/a") as blocks,
    ):
        list(blocks)


def test_a_download_begins_again_while_nothing_has_arrived():
    def answer(handler, number):
        if number == 2:
            respond(handler, 503, BUSY)
        elif number > 2:
            respond(handler, 200, b"content")

    with scripted(answer) as server, client_of(server)[0].download("/runs/x/artifacts/a") as blocks:
        assert b"".join(blocks) == b"content"
    assert len(server.requests) == 3


def test_a_page_for_browsers_is_no_answer():
    page = scripted(lambda handler, _: respond(handler, 200, b"<html>"))
    with page as server, pytest.raises(ServerUnavailable, match="right server"):
        client_of(server)[0].get("/x")
    redirect = scripted(lambda handler, _: respond(handler, 302, b"", Location="/login"))
    with redirect as server, pytest.raises(ApiRefusal):
        client_of(server)[0].get("/x")


def test_a_silent_server_does_not_outlast_the_deadline():
    ended, began = threading.Event(), time.monotonic()
    with scripted(lambda _handler, _number: ended.wait(120)) as server:
        with pytest.raises(TimeUp):
            client_of(server, 0.3)[0].get("/x")
        ended.set()
    assert time.monotonic() - began < READ_SECONDS / 2


# --- streams ----------------------------------------------------------------------------------------------------------


def chunk(number):
    return b'id: %d\nevent: chunk\ndata: {"n": %d}\n\n' % (number, number)


def test_a_lost_stream_continues_after_the_last_event():
    def answer(handler, number):
        if number == 1:
            respond(
                handler,
                200,
                chunk(1) + b": ping\nid: 7\n\n" + b'event: chunk\ndata: {"n"',
                Content_Type="text/event-stream",
            )
        elif number == 2:
            respond(handler, 503, BUSY)
        else:
            respond(handler, 200, chunk(8) + b"id: 9\nevent: end\ndata: {}\n\n")

    with scripted(answer) as server:
        found = []
        for event in follow_events(client_of(server)[0], "/x", query={"tenant": None}):
            found.append((event.id, event.name))
            if event.name == "end":
                break
    assert found == [("1", "chunk"), ("8", "chunk"), ("9", "end")]
    assert [headers.get("Last-Event-ID") for _, _, headers in server.requests] == [None, "7", "7"]


def test_a_refused_stream_is_not_repeated():
    missing = scripted(lambda handler, _: respond(handler, 404, b'{"code": "not_found"}'))
    with missing as server, pytest.raises(ApiRefusal) as refused:
        next(follow_events(client_of(server)[0], "/x"))
    assert (refused.value.exit_code, len(server.requests)) == (66, 1)


def test_events_are_read_across_the_parts_of_a_response():
    content = (
        ': hello\r\nretry: 3000\r\n\r\nid: 1\nevent: a\ndata: 1\n\ndata: [\ndata: 2]\n\nid: 3\n\ndata: "zwölf"\n\ndata: 4'
    ).encode()
    expected = [
        StreamEvent("1", "a", 1),
        StreamEvent("", "message", [2]),
        StreamEvent("3", "", None),
        StreamEvent("", "message", "zwölf"),
    ]
    for size in (1, 2, 3, 7, len(content)):
        parts = [content[place : place + size] for place in range(0, len(content), size)]
        assert list(parse_events(parts)) == expected


def test_a_page_is_no_stream():
    with pytest.raises(CommandFailed) as failed:
        list(parse_events([b"data: <html>\n\n"]))
    assert failed.value.exit_code == 69


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_survives_a_restart_of_the_server():
    def answer(handler, number):
        if number == 1:
            respond(handler, 200, b'{"status": "running"}')
        elif number < 7:
            handler.connection.close()
        else:
            respond(handler, 200, b'{"status": "completed"}')

    with scripted(answer) as server:
        assert wait_for_end(client_of(server)[0], "x") == {"status": "completed"}


def test_the_log_of_a_job_that_is_retried_meanwhile_is_written_once():
    """A stream is of the newest attempt when it is opened: between two reads of the attempt, it may be either one."""
    attempts = iter([1, 2, 2, 2, 2])

    def answer(handler, _):
        if handler.path == "/runs/x/logs":
            respond(handler, 200, b'id: 1\nevent: chunk\ndata: {"text": "two"}\n\nid: 2\nevent: end\ndata: {}\n\n')
        else:
            respond(handler, 200, b'{"status": "completed", "attempt": %d}' % next(attempts))

    out = io.StringIO()
    with scripted(answer) as server:
        context = CommandContext(Namespace(), Printer(is_json=False, out=out))
        context.client = client_of(server)[0]
        assert follow_job(context, "x")["attempt"] == 2
    assert out.getvalue() == "two"


def test_patience_ends_after_a_minute_without_an_answer():
    now = [0.0]
    patience = Patience(Deadline(None), pause=lambda _: None, clock=lambda: now[0])
    away = ServerUnavailable("away")
    now[0] = 59.0
    patience.endure(away)
    patience.answered()
    now[0] = 118.0
    patience.endure(away)
    now[0] = 119.0
    with pytest.raises(ServerUnavailable):
        patience.endure(away)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("completed", None, 0),
        ("completed", 0, 0),
        ("completed", 3, 3),
        ("failed", 7, 7),
        ("failed", None, 1),
        ("failed", 0, 1),
        ("failed", 256, 1),
        ("failed", -9, 1),
        ("incident", None, 1),
        ("canceled", 0, 130),
        ("canceled", None, 130),
    ],
)
def test_the_exit_code_of_a_job(status, code, expected):
    assert exit_code_of_job({"status": status, "result": {"exitCode": code}}) == expected
