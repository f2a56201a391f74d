"""Raw bytes to the real server: bodies in pieces, too large, too slow, headers that two parsers would read in two ways."""

import json
import re
import socket
import time
from pathlib import Path

import pytest

from runtime_jobs.models import Job
from tests.factories import SUBMIT_BODY, OrganizationFactory, ProjectFactory, api_token, submitted
from tests.live_server import serving

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
BODY = json.dumps(SUBMIT_BODY).encode()
MEBI = 1 << 20


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=database_url) as found:
        yield found


@pytest.fixture
def token():
    return api_token(ProjectFactory(organization=OrganizationFactory(slug="sandtrace")).organization)


def head(token, *lines, method=b"POST", path=b"/v1/runtime/jobs"):
    first = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % (method, path)
    return (
        first + b"Authorization: Bearer %s\r\n" % token.encode() + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    )


def chunked(*pieces):
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def talk(server, *sent):
    """Send, and read one answer: its status, headers and body."""
    with server.connect() as line:
        try:
            for piece in sent:
                line.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered before it received everything
        return answer_on(line)


def answer_on(line):
    data = b""
    while b"\r\n\r\n" not in data:
        more = line.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    status = int(top.split()[1])
    headers = dict(re.findall(r"^([^:\r\n]+): ([^\r\n]*)", top.decode("latin-1").lower(), re.MULTILINE))
    while len(body) < int(headers.get("content-length", "0")):
        body += line.recv(65536)
    return status, headers, body


def problem(answer):
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json", (status, headers, body)
    document = json.loads(body)
    assert (document["status"], document["request_id"]) == (status, headers["x-request-id"].replace("REQ", "req"))
    return status, document["code"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_in_chunks_is_read_whole(server, token, size):
    pieces = [BODY[place : place + size] for place in range(0, len(BODY), size)]
    status, _, body = talk(server, head(token, b"Transfer-Encoding: chunked"), chunked(*pieces))
    assert (status, json.loads(body)["status"]) == (201, "queued")


def test_a_body_in_chunks_is_checked_where_every_field_is_optional(server, token):
    job = submitted(ProjectFactory(organization=OrganizationFactory(slug="sandtrace")))
    path = f"/v1/runtime/jobs/{job.job_ulid}/cancel".encode()
    sent = head(token, b"Transfer-Encoding: chunked", path=path)
    assert problem(talk(server, sent, chunked(b'{"x":', b" 1}"))) == (400, "unknown_field")
    assert talk(server, sent, chunked(b'{"reason"', b': "enough"}'))[0] == 200
    job.refresh_from_db()
    assert job.cancel_message == "enough"


@pytest.mark.parametrize("megabytes", [2, 12])
def test_a_body_in_chunks_that_is_too_large_is_refused(server, token, megabytes):
    pieces = [b" " * MEBI] * megabytes
    assert problem(talk(server, head(token, b"Transfer-Encoding: chunked"), chunked(*pieces))) == (
        413,
        "payload_too_large",
    )
    assert Job.objects.count() == 0


def test_an_endless_body_is_refused_while_it_comes(server, token):
    with server.connect() as line:
        line.sendall(head(token, b"Transfer-Encoding: chunked"))
        sent = 0
        try:
            while sent < 64:
                line.sendall(b"%x\r\n%s\r\n" % (MEBI, b" " * MEBI))
                sent += 1
            line.settimeout(5)
            assert problem(answer_on(line)) == (413, "payload_too_large")
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert server.process.poll() is None
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1])
    assert peak < 400_000, "kilobytes: it has not kept it all"


@pytest.mark.parametrize("length", [MEBI + 1, 12 * MEBI])
def test_a_length_that_is_too_large_is_refused(server, token, length):
    answer = talk(server, head(token, b"Content-Length: %d" % length), b" " * length)
    assert problem(answer) == (413, "payload_too_large")


@pytest.mark.parametrize("length", [MEBI * 17, 10**15])
def test_a_length_that_is_absurd_is_refused_before_the_body_comes(server, token, length):
    assert problem(talk(server, head(token, b"Content-Length: %d" % length))) == (413, "payload_too_large")


def test_who_asks_first_is_spared_sending(server, token):
    answer = talk(server, head(token, b"Content-Length: %d" % (2 * MEBI), b"Expect: 100-continue"))
    assert problem(answer) == (413, "payload_too_large")


def test_a_body_that_does_not_come_is_given_up(database_url, tmp_path, token):
    # A server of its own: a body of another test may take longer than a second to arrive on a machine under load.
    with serving(tmp_path, DATABASE_URL=database_url, BODY_SECONDS="1") as server:
        then = time.monotonic()
        for framing in (b"Content-Length: 1000", b"Transfer-Encoding: chunked"):
            assert problem(talk(server, head(token, framing), b"1\r\n{\r\n")) == (408, "request_timeout")
        assert time.monotonic() - then < 10
        assert "Traceback" not in server.log()
        assert "rto_api_" not in server.log()


def test_a_caller_that_goes_in_the_middle_of_its_body_is_forgotten(server, token):
    for _ in range(3):
        with server.connect() as line:
            line.sendall(head(token, b"Content-Length: 1000") + b'{"org')
    assert server.answers()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 3", b"Content-Length: 5"],
        [b"Content-Length: 3", b"Transfer-Encoding: chunked"],
        [b"Content-Length: -1"],
        [b"Content-Length: 0x3"],
        [b"Content-Length: +3"],
        [b"Content-Length: 3, 3"],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: chunked, gzip"],
        [b"Transfer-Encoding: xchunked"],
        [b"Content-Length : 3"],
        [b"X: a", b" folded: b", b"Content-Length: 3"],
        [b"no colon", b"Content-Length: 3"],
        [b"\x00: x", b"Content-Length: 3"],
    ],
    ids=str,
)
def test_a_body_that_two_parsers_would_end_in_two_places_makes_no_job(server, token, lines):
    """Whatever the server makes of it: no job, no second request in the first one's body, and the server lives."""
    smuggled = b"0\r\n\r\n" + head(token, b"Content-Length: %d" % len(BODY)) + BODY
    with server.connect() as line:
        line.sendall(head(token, *lines) + smuggled)
        line.shutdown(socket.SHUT_WR)
        line.settimeout(5)
        answer = line.recv(65536)
    assert not answer or 400 <= int(answer.split()[1]) < 500
    assert Job.objects.count() == 0
    assert server.answers()


def test_two_authorization_headers_open_nothing(server, token):
    again = b"Authorization: Bearer %s" % token.encode()
    assert problem(talk(server, head(token, again, method=b"GET"))) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "lines",
    [[b"X-Long: " + b"x" * 70_000], [b"X-%d: x" % n for n in range(2000)], [b"Cookie: " + b"a=b;" * 20_000]],
    ids=len,
)
def test_headers_without_measure_do_no_harm(server, token, lines):
    status, _, _ = talk(server, head(token, *lines, method=b"GET"))
    assert status in {200, 400, 431}
    assert server.answers()


def test_an_unknown_host_and_a_bad_address_are_problem_documents(server, token):
    sent = head(token, method=b"GET").replace(b"Host: localhost", b"Host: evil.example")
    assert problem(talk(server, sent)) == (400, "invalid")
    assert problem(talk(server, head(token, method=b"GET", path=b"/v1/runtime/jobs/%ff%fe%00"))) == (404, "not_found")
    assert problem(talk(server, head(token, method=b"GET", path=b"/v1/runtime/jobs?cursor=%ff%00"))) == (
        400,
        "invalid_query",
    )


def test_nothing_of_all_this_made_the_server_complain_or_show_a_token(server, token):
    assert "Traceback" not in server.log()
    assert "rto_api_" not in server.log()
