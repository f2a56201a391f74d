"""Attacks on the real server by heads: endless, too many, too slow, in trailers, pipelined, half open."""

import json
import re
import socket
import time
from pathlib import Path

import pytest
import requests

from orchestrator.step_logs import job_log_writes
from runtime_jobs.models import Job
from tests.factories import (
    SUBMIT_BODY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    submitted,
)
from tests.live_server import eventually, serving
from tests.orchestrator.http.asgi.wire import connect, is_closed, pour, problem_on, read_response, request

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
HEADER_SECONDS = 3.0  # a shorter time may end between a connection and its first bytes on a busy machine
JOBS = "/v1/runtime/jobs"
CHUNKED = ("Transfer-Encoding: chunked", "Content-Type: application/json")


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, DATABASE_URL=database_url, HEADER_SECONDS=str(HEADER_SECONDS), BODY_SECONDS="4") as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.fixture
def token():
    return api_token(ProjectFactory(organization=OrganizationFactory(slug="sandtrace")).organization)


def peak_kilobytes(server):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1])


@pytest.mark.parametrize(
    "beginning",
    [request() + b"X-Long: ", b"GET /", request() + b"X", request(method="POST", path=JOBS) + b"Cookie: a="],
    ids=["header value", "request line", "header name", "cookie"],
)
def test_an_endless_line_is_cut_off_within_a_mebibyte(server, beginning):
    before = peak_kilobytes(server)
    with connect(server) as line:
        line.sendall(beginning)
        taken = pour(line, b"x" * 65536, 1024)  # 64 MiB
        assert taken < 200, f"{taken} pieces of 64 KiB were taken"
    assert peak_kilobytes(server) - before < 20_000
    assert server.answers()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["X-Long: " + "x" * 64_000], 200),
        (["X-Long: " + "x" * 66_000], 431),
        ([f"X-{number}: x" for number in range(99)], 200),
        ([f"X-{number}: x" for number in range(100)], 431),
        (["X: y"] * 30_000, 431),
        (["Cookie: " + "a=b;" * 20_000], 431),
    ],
    ids=["64000 bytes", "66000 bytes", "100 headers", "101 headers", "30000 headers", "cookies"],
)
def test_a_head_has_64_kibibytes_and_100_headers_at_most(server, lines, status):
    with connect(server) as line:
        pour(line, request(*lines) + b"\r\n", 1)
        if status == 200:
            assert read_response(line)[0] == 200
        else:
            assert problem_on(line) == (431, "headers_too_large")
            assert is_closed(line)


@pytest.mark.parametrize(
    "beginning", [b"GET / HT", request(), request("X: y") + b"X-Half: "], ids=["line", "headers", "half"]
)
def test_a_head_that_does_not_come_is_answered_408(server, beginning):
    with connect(server) as line:
        line.sendall(beginning)
        assert problem_on(line) == (408, "request_timeout")
        assert is_closed(line)


def test_a_connection_that_sends_nothing_is_closed(server):
    with connect(server) as line:
        assert is_closed(line)


@pytest.mark.parametrize("byte", [b"x", b"\r\n"], ids=["header", "empty lines"])
def test_bytes_that_trickle_do_not_prolong_the_time_of_a_head(server, byte):
    begun = time.monotonic()
    with connect(server) as line:
        line.sendall(request() + b"X: " if byte == b"x" else b"")
        while pour(line, byte, 1):
            assert time.monotonic() - begun < 30, "it is still open"
            time.sleep(0.05)
    assert time.monotonic() - begun >= HEADER_SECONDS - 0.1


def test_the_second_head_of_a_connection_has_its_time_too(server):
    with connect(server) as line:
        line.sendall(request() + b"\r\n")
        assert read_response(line)[0] == 200
        line.sendall(request())
        assert problem_on(line) == (408, "request_timeout")


def test_an_idle_connection_is_kept_for_the_next_request(server):
    with connect(server) as line:
        for _ in range(2):
            line.sendall(request() + b"\r\n")
            assert read_response(line)[0] == 200
            time.sleep(HEADER_SECONDS + 0.3)
        line.sendall(request() + b"\r\n")
        assert read_response(line)[0] == 200


def test_300_half_open_connections_are_gone_after_their_time(server):
    lines = []
    try:
        for _ in range(300):  # a connection that has sent nothing is closed without an answer
            lines.append(connect(server, 30))
            lines[-1].sendall(request())
        assert requests.get(f"{server.url}/healthz", timeout=5).status_code == 200
        assert [read_response(line)[0] for line in lines] == [408] * 300
    finally:
        for line in lines:
            line.close()
    eventually(lambda: connections_of(server) <= 1)


def connections_of(server):
    """As /metrics has it, the asking one included."""
    text = requests.get(f"{server.url}/metrics", timeout=30).text
    return float(re.search(r"^orchestrator_connections (\S+)$", text, re.MULTILINE)[1])


def test_a_trailer_is_no_header(server, token):
    """A proxy checks headers: a trailer that became one would bypass it, and would authenticate here."""
    body = json.dumps(SUBMIT_BODY).encode()
    with connect(server) as line:
        line.sendall(request(*CHUNKED, method="POST", path=JOBS) + b"\r\n")
        line.sendall(b"%x\r\n%s\r\n0\r\nAuthorization: Bearer %s\r\n\r\n" % (len(body), body, token.encode()))
        assert problem_on(line) == (401, "unauthenticated")
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "piece",
    [b"1;" + b"x" * 140_000, b"1\r\n \r\n" * 60_000, b"0\r\nX: " + b"x" * 140_000, b"0\r\n" + b"X: y\r\n" * 200],
    ids=["chunk extension", "tiny chunks", "trailer line", "many trailers"],
)
def test_framing_has_a_limit(server, token, piece):
    with connect(server) as line:
        line.sendall(request(*CHUNKED, f"Authorization: Bearer {token}", method="POST", path=JOBS) + b"\r\n")
        pour(line, piece, 1)
        status, code = problem_on(line)
        assert (status, code) in {(400, "invalid"), (431, "headers_too_large")}
        assert is_closed(line)


def test_a_body_without_end_after_the_response_is_cut_off(server):
    """An address that takes no body is answered while the client still sends."""
    with connect(server) as line:
        line.sendall(request("Content-Length: 10000000000", method="POST", path="/nowhere") + b"\r\n")
        assert problem_on(line) == (401, "unauthenticated")
        assert pour(line, b"x" * 65536, 2048) < 1024, "128 MiB were taken"


def test_ten_thousand_pipelined_requests_are_not_kept(server):
    before = peak_kilobytes(server)
    one = request() + b"\r\n"
    with connect(server) as line:
        line.sendall(request(path="/readyz") + b"\r\n")  # takes a while, and the others wait for its response
        pour(line, one * 1000, 10)
        data = b""
        while True:
            try:
                more = line.recv(65536)
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
    assert 1 <= data.count(b"HTTP/1.1 ") <= 10
    assert peak_kilobytes(server) - before < 20_000


def test_some_pipelined_requests_are_answered_in_their_order(server):
    with connect(server) as line:
        line.sendall((request() + b"\r\n") * 3 + request("Connection: close", path="/nowhere") + b"\r\n")
        data = b""
        while more := line.recv(65536):
            data += more
    assert re.findall(rb"HTTP/1\.1 (\d+)", data) == [b"200", b"200", b"200", b"404"]


KEY = ("Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")


@pytest.mark.parametrize("path", ["/", JOBS, "/v1/runtime/leases", "/admin/", "/nowhere", "/healthz"])
def test_a_websocket_where_there_is_none_is_refused(server, path):
    with connect(server) as line:
        line.sendall(request("Upgrade: websocket", *KEY, path=path) + b"\r\n")
        assert problem_on(line) == (404, "not_found")
        assert is_closed(line)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "lines",
    [["Upgrade: websocket", "Connection: Upgrade"], ["Upgrade: websocket", *KEY, "X: " + "x" * 70_000]],
    ids=["no key", "large"],
)
def test_a_handshake_has_the_limits_of_a_head(server, lines):
    with connect(server) as line:
        pour(line, request(*lines) + b"\r\n", 1)
        assert read_response(line)[0] in {400, 426, 431}
        assert is_closed(line)
    assert "Traceback" not in server.log()


def test_another_upgrade_is_ignored(server):
    with connect(server) as line:
        line.sendall(request("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings") + b"\r\n")
        assert read_response(line)[0] == 200
        assert is_closed(line)


def test_a_client_that_resets_leaves_nothing(server):
    for _ in range(20):
        line = connect(server)
        line.sendall(request() + b"X: ")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        line.close()
    eventually(lambda: connections_of(server) <= 1)


@pytest.mark.parametrize("line_of_request", [b"GET /healthz\r\n", b"GET /healthz HTTP/2.0\r\n"], ids=["0.9", "2.0"])
def test_other_versions_of_http_are_refused(server, line_of_request):
    with connect(server) as line:
        line.sendall(line_of_request + b"Host: localhost\r\n\r\n")
        assert problem_on(line) == (400, "invalid")
        assert is_closed(line)


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, gzip", "gzip", "identity"])
def test_transfer_codings_beside_chunked_are_refused(server, coding):
    with connect(server) as line:
        line.sendall(request(f"Transfer-Encoding: {coding}", method="POST") + b"\r\n0\r\n\r\n")
        assert problem_on(line) == (400, "invalid")
        assert is_closed(line)


def test_a_host_is_named_once_and_is_one(server):
    """RFC 9112, section 3.2: another host could be served than the one that a proxy has checked."""
    host = b"Host: localhost\r\n"
    for version, lines, status in [
        (b"1.1", b"", 400),
        (b"1.1", host + host, 400),
        (b"1.1", host + b"Host: other.example\r\n", 400),
        (b"1.0", host + host, 400),
        (b"1.1", b"Host: local host\r\n", 400),
        (b"1.1", b"Host: localhost/admin\r\n", 400),
        (b"1.1", b"Host: localhost,other.example\r\n", 400),
        (b"1.1", b"Host: localhost:80\r\n", 200),
        (b"1.1", b"Host: [::1]:80\r\n", 200),
        (b"1.0", b"", 200),
    ]:
        with connect(server) as line:
            line.sendall(b"GET /healthz HTTP/" + version + b"\r\n" + lines + b"\r\n")
            if status == 200:
                assert read_response(line)[0] == 200, (version, lines)
            else:
                assert problem_on(line) == (status, "invalid"), (version, lines)
                assert is_closed(line)


def test_a_client_of_http_1_0_gets_no_chunks(server, token):
    """The log of a job is a response without a length: the end of the connection is the end of it."""
    submitted(ProjectFactory(organization=OrganizationFactory(slug="sandtrace")))
    worker = WorkerFactory()
    lease = claimed(worker)
    for seq, chunk in enumerate([b"first\n", b"second\n"]):
        job_log_writes.append_log(lease_ulid=lease.lease.lease_ulid, worker=worker, seq=seq, chunk=chunk)

    def log(version):
        head = f"GET /v1/jobs/{lease.job.job_ulid}/logs HTTP/{version}\r\nHost: localhost\r\n"
        with connect(server) as line:
            line.sendall(f"{head}Authorization: Bearer {token}\r\nConnection: close\r\n\r\n".encode())
            status, headers, body = read_response(line)
            while more := line.recv(65536):
                body += more
        assert status == 200, body
        return headers.get("transfer-encoding"), body

    assert log("1.1") == ("chunked", b"d\r\nfirst\nsecond\n\r\n0\r\n\r\n")
    assert log("1.0") == (None, b"first\nsecond\n")


def test_a_client_of_http_1_0_cannot_send_chunks(server):
    """RFC 9112, section 6.1: the framing is faulty, since a proxy of that version forwards the body as it is."""
    with connect(server) as line:
        line.sendall(b"POST /v1/runtime/jobs HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert problem_on(line) == (400, "invalid")
        assert is_closed(line)
