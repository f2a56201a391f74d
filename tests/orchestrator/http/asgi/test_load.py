"""Effects of one client on others: bodies that never arrive, log-ins, an unreachable database, full queues."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import requests
from django.contrib.auth import get_user_model

from runtime_jobs.models import Job
from tests.factories import SUBMIT_BODY, OrganizationFactory, ProjectFactory, api_token
from tests.live_server import eventually, patient, serving
from tests.orchestrator.http.asgi.test_request_heads import peak_kilobytes
from tests.orchestrator.http.asgi.wire import connect, pour, problem_on, read_response, request

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
JOBS, CLAIMS = "/v1/runtime/jobs", "/v1/runtime/leases"
MEBI = 1 << 20


@pytest.fixture(scope="module")
def small(database_url, tmp_path_factory):
    """One thread, one request that may wait for it, one login, two database connections, statements that may hang."""
    environment = {
        "DATABASE_URL": patient(database_url),
        "REQUEST_THREADS": "1",
        "REQUEST_QUEUE": "1",
        "LOGIN_THREADS": "1",
        "LOGIN_QUEUE": "0",
        "DATABASE_POOL_MAX": "2",
    }
    with serving(tmp_path_factory.mktemp("small"), **environment) as found:
        yield found


@pytest.fixture
def token():
    return api_token(ProjectFactory(organization=OrganizationFactory(slug="sandtrace")).organization)


@pytest.fixture
def locked(database_url):
    """Call it with a table: whoever asks for that waits until the test ends, or `release` is called."""
    with psycopg.connect(database_url) as session:

        def lock(table):
            session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

        lock.release = session.rollback
        yield lock
        session.rollback()


def waiting(database_url):
    with psycopg.connect(database_url) as session:
        return session.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()[0]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_with_all_threads_stuck_it_is_alive_and_refuses_what_cannot_wait(small, token, locked, database_url):
    locked("runtime_jobs")
    with ThreadPoolExecutor(4) as clients:
        calls = [clients.submit(requests.get, small.url + JOBS, headers=bearer(token), timeout=60) for _ in range(4)]
        eventually(lambda: sum(call.done() for call in calls) == 2)
        eventually(lambda: waiting(database_url) == 1)
        for refused in (call.result() for call in calls if call.done()):
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            assert refused.headers["Retry-After"] == "1"
        delta = requests.get(f"{small.url}/api/v1/runs", timeout=10)
        assert (delta.status_code, delta.json()["error"]["details"]["code"]) == (503, "overloaded")
        alive = requests.get(f"{small.url}/healthz", timeout=10)
        assert (alive.status_code, alive.json()) == (200, {"status": "alive"})
        assert re.fullmatch("req_[0-9a-z]{26}", alive.headers["X-Request-Id"])
        assert requests.head(f"{small.url}/healthz", timeout=10).status_code == 200
        assert sum(call.done() for call in calls) == 2, "all this happened while the only thread was stuck"
        locked.release()
        assert sorted(call.result(60).status_code for call in calls) == [200, 200, 503, 503]
    assert requests.get(small.url + JOBS, headers=bearer(token), timeout=10).status_code == 200


def test_logins_wait_apart_from_everybody_else(small, token, locked, database_url):
    get_user_model().objects.create_user("olga", password="correct horse battery")
    page = requests.get(f"{small.url}/login/", timeout=30)
    sent = {
        "username": "olga",
        "password": "wrong",
        "csrfmiddlewaretoken": re.search('name="csrfmiddlewaretoken" value="([^"]+)"', page.text)[1],
    }

    def attempt():
        return requests.post(f"{small.url}/login/", data=sent, cookies=page.cookies, timeout=60)

    locked("auth_user")
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(attempt)
        eventually(lambda: waiting(database_url) == 1)
        second = attempt()
        assert (second.status_code, second.json()["code"]) == (503, "overloaded")
        answer = requests.post(small.url + JOBS, json=SUBMIT_BODY, headers=bearer(token), timeout=30)
        assert answer.status_code == 201, answer.text
        assert not first.done()
        locked.release()
        assert first.result(60).status_code == 200


def test_a_pool_without_a_free_connection_is_not_called_a_database_that_is_away(database_url, token, locked, tmp_path):
    with serving(tmp_path, DATABASE_URL=patient(database_url), DATABASE_POOL_MAX="1") as server:
        locked("runtime_jobs")
        with ThreadPoolExecutor(3) as clients:
            stuck = clients.submit(requests.get, server.url + JOBS, headers=bearer(token), timeout=60)
            eventually(lambda: waiting(database_url) == 1)
            others = [
                clients.submit(requests.get, server.url + path, headers=bearer(token), timeout=60)
                for path in (JOBS, "/readyz")
            ]
            numbers = requests.get(f"{server.url}/metrics", timeout=60).text
            refused, ready = (call.result(60) for call in others)
            assert not stuck.done()
            locked.release()
            assert stuck.result(60).status_code == 200
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert refused.headers["Retry-After"] == "1"
    assert ready.json()["wrong"] == ["overloaded"]
    assert "orchestrator_database_up 1.0" in numbers
    assert "orchestrator_metrics_queries_failed 3.0" in numbers


@pytest.fixture(scope="module")
def slow(database_url, tmp_path_factory):
    environment = {"BODY_SECONDS": "120", "BODY_SPOOL_BYTES": str(220 * MEBI)}
    with serving(tmp_path_factory.mktemp("slow"), DATABASE_URL=database_url, **environment) as found:
        yield found


def completed(line):
    """Send the last byte of a body, and return status and code of the answer."""
    line.sendall(b" ")
    return problem_on(line)


def test_200_bodies_that_stop_before_their_end_cost_no_memory(slow, token):
    """Other clients are not affected. A request too many is refused by its code."""
    begin = request(
        "Content-Type: application/json",
        f"Content-Length: {MEBI}",
        f"Authorization: Bearer {token}",
        method="POST",
        path=JOBS,
    )
    before = peak_kilobytes(slow)
    lines = []
    try:
        for _ in range(200):
            lines.append(connect(slow, 60))
            lines[-1].sendall(begin + b"\r\n" + b" " * (MEBI - 1))
        answer = requests.post(slow.url + JOBS, json=SUBMIT_BODY, headers=bearer(token), timeout=60)
        assert answer.status_code == 201, answer.text
        assert peak_kilobytes(slow) - before < 100_000
        lines += [connect(slow, 60) for _ in range(30)]
        for line in lines[200:]:
            line.sendall(begin + b"\r\n" + b" " * (MEBI - 1))
        # Connections of a burst are accepted in any order, so any of them may be the ones for which no room is left.
        assert (503, "overloaded") in map(completed, reversed(lines))
    finally:
        for line in lines:
            line.close()
    padded = b" " * (MEBI - 2000) + requests.Request("POST", slow.url, json=SUBMIT_BODY).prepare().body
    headers = bearer(token) | {"Content-Type": "application/json"}
    eventually(lambda: requests.post(slow.url + JOBS, data=padded, headers=headers, timeout=30).status_code == 201)
    assert Job.objects.count() >= 2


def test_a_large_body_without_credentials_is_refused_before_it_comes(slow):
    sent = request(
        "Content-Type: application/json", "Content-Length: 200000", "Expect: 100-continue", method="POST", path=JOBS
    )
    with connect(slow) as line:
        line.sendall(sent + b"\r\n")
        assert problem_on(line) == (401, "unauthenticated")


def test_a_large_body_with_credentials_is_invited(slow, token):
    lines = ("Content-Type: application/json", "Content-Length: 200000", "Expect: 100-continue")
    with connect(slow) as line:
        line.sendall(request(*lines, f"Authorization: Bearer {token}", method="POST", path=JOBS) + b"\r\n")
        assert read_response(line)[0] == 100
        pour(line, b"x" * 200_000, 1)
        assert problem_on(line) == (400, "malformed_json")


@pytest.mark.parametrize(
    ("method", "path", "size", "limit"),
    [
        ("POST", CLAIMS, 70_000, 64 << 10),
        ("POST", "/api/v1/internal/lease", 70_000, 64 << 10),
        ("POST", "/login/", 9000, 8 << 10),
        ("POST", "/admin/login/", 9000, 8 << 10),
        ("POST", "/metrics", 5000, 4 << 10),
        ("GET", JOBS, 5000, 4 << 10),
        ("POST", JOBS, MEBI + 1, MEBI),
        ("POST", "/v1/ingest/run", MEBI + 1, MEBI),
    ],
)
def test_each_route_has_its_own_limit(slow, token, method, path, size, limit):
    answer = requests.request(method, slow.url + path, data=b" " * size, headers=bearer(token), timeout=30)
    document = answer.json()
    assert answer.status_code == 413, answer.text
    assert (document["limit"] if "limit" in document else document["error"]["details"]["limit"]) == limit


def test_a_server_has_room_for_so_many_connections_and_idle_ones_give_way(database_url, token, tmp_path):
    begin = request(
        "Content-Length: 10", "Expect: 100-continue", f"Authorization: Bearer {token}", method="POST", path=JOBS
    )
    with (
        serving(tmp_path, DATABASE_URL=database_url, MAX_CONNECTIONS="20") as server,
        contextlib.ExitStack() as open_lines,
    ):
        for _ in range(60):
            pour(open_lines.enter_context(connect(server)), request(), 1)
        assert requests.get(f"{server.url}/healthz", timeout=10).status_code == 200
        busy = [open_lines.enter_context(connect(server)) for _ in range(20)]
        for line in busy:
            line.sendall(begin + b"\r\n")
            assert read_response(line)[0] == 100, "its request is in progress"
        assert _refused(server)
        for line in busy:
            line.sendall(b"{         ")
        assert {read_response(line)[0] for line in busy} == {415}, "none of them was cut off"
        assert not _refused(server), "they are idle now"
        assert "Traceback" not in server.log()


def _refused(server):
    with connect(server) as line:
        pour(line, request() + b"\r\n", 1)
        status, _, body = read_response(line)
    return status == 503 and b'"overloaded"' in body
