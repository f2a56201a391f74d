"""`GET /api/dashboard/events` on the real server: snapshot, events without gap or repeat, limits, tenants, slow clients."""

import contextlib
import http.client
import json
import signal
import socket
import time

import psycopg
import pytest
import requests
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from orchestrator.services import heartbeat, job_end
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import ApiToken, JobEvent, Membership
from runtime_jobs.models.tenants import Scope
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.live_server import eventually, serving
from tests.older_transactions import wait_for_older_transactions
from workers.registry.tokens import digest_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SETTINGS = {"STREAM_AUTH_SECONDS": "0.5", "STREAM_STALL_SECONDS": "120"}
PATH = "/api/dashboard/events"
EVENTS, STEP = 6000, 500
# The reason has 1,500 bytes: the buffers of the operating system take megabytes.
MANY_EVENTS = """
INSERT INTO runtime_job_events (event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at,
       org_slug, job_type, correlation_id, fence, prev_hash, hash)
SELECT 'evt_' || lpad(n::text, 26, '0'), %(job)s, n, 'job.prioritized', 'core', 'test',
       jsonb_build_object('reason', repeat('x', 1500)), clock_timestamp(), 'acme', 'runtime', '', 0, '', ''
  FROM generate_series(%(first)s::int, %(last)s::int) n"""


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    folder, secret = tmp_path_factory.mktemp("server"), settings.SECRET_KEY  # sessions are made in this process
    with serving(folder, DATABASE_URL=database_url, SECRET_KEY=secret, **SETTINGS) as found:
        yield found


@pytest.fixture
def organization():
    return OrganizationFactory(slug="acme")


@pytest.fixture
def project(organization):
    return ProjectFactory(organization=organization)


@pytest.fixture
def token(organization):
    return api_token(organization, (Scope.ORCH_READ,))


class EventSource:
    """A client that reads events one at a time, as a browser does."""

    def __init__(self, server, token=None, *, path=PATH, last_id=None, receive_buffer=None, headers=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect(server.address)
        self.connection = http.client.HTTPConnection(*server.address)
        self.connection.sock = self.socket
        sent = {"Accept": "text/event-stream", **(headers or {"Authorization": f"Bearer {token}"})}
        self.connection.request("GET", path, headers=sent | ({"Last-Event-ID": last_id} if last_id else {}))
        self.answer = self.connection.getresponse()
        self.status, self.last_id, self.retries = self.answer.status, last_id, []

    def next(self):
        """Return the next event and its content; None at the end of the response."""
        fields = {}
        while line := self.answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(":")
            if line != b"\n":
                fields[name] = value.removeprefix(" ")
                continue
            self.last_id = fields.get("id", self.last_id)
            if "retry" in fields:
                self.retries.append(int(fields["retry"]))
            if "data" in fields:
                return fields.get("event", "message"), json.loads(fields["data"])
            fields = {}
        return None

    def events(self, count):
        """Return the next events, without snapshots."""
        found = []
        while len(found) < count:
            name, content = self.next()
            if name != "snapshot":
                assert name == "message", content
                found.append(content)
        return found

    def close(self):
        self.answer.close()
        self.socket.close()


@pytest.fixture
def source(server):
    with contextlib.ExitStack() as opened:

        def connect(token=None, *, of=server, **options):
            found = EventSource(of, token, **options)
            opened.callback(found.close)
            return found

        yield connect


def number(server, name):
    lines = requests.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def is_cut_off(client):
    """Return whether the connection ends without the end of the response, and without another event."""
    try:
        client.next()
    except (http.client.IncompleteRead, ConnectionError):
        return True
    return False


def run_one(project):
    job = submitted(project)
    lease = claimed(WorkerFactory()).lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed")
    return job


def test_first_a_snapshot_and_then_an_envelope_for_each_event(server, project, token, source):
    waiting = submitted(project)
    wait_for_older_transactions()  # its event is before the place of the snapshot
    client = source(token)
    assert client.status == 200
    assert client.answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert client.answer.headers["Cache-Control"] == "no-store"
    name, snapshot = client.next()
    assert (name, client.retries) == ("snapshot", [3000])
    assert snapshot["jobs"]["queued"] == 1
    lease = claimed(WorkerFactory()).lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed")
    found = client.events(3)
    assert [envelope["eventType"] for envelope in found] == ["job.leased", "job.started", "job.failed"]
    assert {envelope["jobId"] for envelope in found} == {str(uuid_of(waiting.job_ulid))}
    pages = requests.get(
        f"{server.url}/api/events?limit=200", headers={"Authorization": f"Bearer {token}"}, timeout=30
    ).json()["results"]
    assert found == pages[-3:], "equal in every copy"


def test_progress_reaches_the_dashboard_once_a_second_and_is_not_in_the_history(project, token, source):
    """Section 6.2: `job.progress` for dashboards. Heartbeats made no event, and a change of the phase had no details."""
    job, other = submitted(project), ProjectFactory(organization=OrganizationFactory(slug="neighbour"))
    mine, theirs = source(token), source(api_token(other.organization, (Scope.ORCH_READ,)))
    for client in (mine, theirs):
        assert client.next()[0] == "snapshot"
    lease = claimed(WorkerFactory()).lease

    def beat(percent, **members):
        progress = {"percent": percent, "current_step": "scan", "message": f"{percent} of 100"}
        heartbeat.renew(lease_ulid=lease.lease_ulid, worker=lease.worker, progress=progress, **members)

    began = time.monotonic()
    beat(0, phase="executing")
    phase = next(found for found in iter(lambda: mine.events(1)[0], None) if found["eventType"] == "job.progress")
    assert (phase["payload"]["details"], phase["integrity"]["sequence"]) == ({"phase": "executing"}, 4)
    found = []
    for percent in range(1, 101):
        beat(percent)
    while not found or found[-1]["payload"]["details"]["percent"] != 100:  # the newest value always arrives
        found += mine.events(1)
    expected = {"phase": "executing", "percent": 100, "currentStep": "scan", "message": "100 of 100"}
    assert found[-1]["payload"]["details"] == expected
    assert {envelope["eventType"] for envelope in found} == {"job.progress"}
    assert {(envelope["jobId"], envelope["integrity"]) for envelope in found} == {(str(uuid_of(job.job_ulid)), None)}
    assert len(found) <= time.monotonic() - began + 2
    assert found[-1]["provenance"]["workerId"] == lease.worker.worker_id
    beat(100)  # an equal value is no event
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed")
    assert mine.events(1)[0]["eventType"] == "job.failed"
    assert JobEvent.objects.filter(event_type="job.progress").count() == 1
    run_one(other)
    assert [envelope["tenant"] for envelope in theirs.events(4)] == ["neighbour"] * 4
    again = source(token, last_id=mine.last_id)  # nothing that was sent is repeated
    assert again.next()[0] == "snapshot"
    run_one(project)
    assert again.events(1)[0]["eventType"] == "job.queued"


def test_tenants_are_apart(project, token, source):
    other = ProjectFactory(organization=OrganizationFactory(slug="neighbour"))
    mine, theirs = source(token), source(api_token(other.organization, (Scope.ORCH_READ,)))
    for client in (mine, theirs):
        assert client.next()[0] == "snapshot"
    for _ in range(3):
        run_one(project), run_one(other)
    for client, tenant in ((mine, "acme"), (theirs, "neighbour")):
        expected = list(JobEvent.objects.filter(org_slug=tenant).order_by("xid", "id").values_list("hash", flat=True))
        found = client.events(len(expected))
        assert {envelope["tenant"] for envelope in found} == {tenant}
        assert [envelope["integrity"]["hash"] for envelope in found] == expected


def test_filters_and_a_member_s_session(organization, project, source):
    user = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=user, organization=organization)
    browser = Client()
    browser.force_login(user)
    cookie = {"Cookie": f"sessionid={browser.cookies['sessionid'].value}"}
    client = source(headers=cookie, path=f"{PATH}?eventType=job.failed&jobType=runtime&tenant=acme")
    assert client.next()[0] == "snapshot"
    jobs = [run_one(project) for _ in range(2)]
    assert [envelope["jobId"] for envelope in client.events(2)] == [str(uuid_of(job.job_ulid)) for job in jobs]


def test_a_client_resumes_over_restarts_and_processes_without_gap_or_repeat(
    server, project, token, source, database_url, tmp_path
):
    found, last_id = [], None

    def read(server, count):
        nonlocal found, last_id
        client = source(token, of=server, last_id=last_id)
        assert client.next()[0] == "snapshot"
        run_one(project)
        found += client.events(count)
        last_id = client.last_id
        client.close()

    read(server, 4)
    for is_killed in (True, False):
        run_one(project)  # while the client has no connection
        with serving(tmp_path, DATABASE_URL=database_url, SECRET_KEY=settings.SECRET_KEY) as other:
            read(other, 8)
            if is_killed:
                other.process.kill()
        run_one(project)  # after the end of its process
        read(server, 8)
    expected = JobEvent.objects.order_by("xid", "id").values_list("hash", flat=True)
    assert [envelope["integrity"]["hash"] for envelope in found] == list(expected)


def test_a_hundred_streams_need_no_more_connections_than_one(server, project, organization, source, database_url):
    def connections():
        with psycopg.connect(database_url) as session:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            return session.execute(query).fetchone()[0]

    first = source(api_token(organization, (Scope.ORCH_READ,)))
    assert first.next()[0] == "snapshot"
    clients = [source(api_token(organization, (Scope.ORCH_READ,))) for _ in range(100)]
    for client in clients:
        assert client.next()[0] == "snapshot"
    run_one(project)
    expected = [envelope["eventId"] for envelope in first.events(4)]
    read = number(server, "orchestrator_events_read_total")
    for client in clients:
        assert [envelope["eventId"] for envelope in client.events(4)] == expected
    assert number(server, "orchestrator_events_read_total") == read
    eventually(lambda: number(server, "orchestrator_event_listeners") == 101)
    # The pool keeps connections that the requests have used, and the process listens on one. A stream has none.
    assert connections() < 50


def test_the_101st_stream_of_a_token_is_refused(token, source):
    assert {source(token).status for _ in range(100)} == {200}
    refused = source(token)
    assert refused.status == 429
    assert refused.answer.headers["Retry-After"].isdecimal()


def test_a_revoked_token_ends_its_stream(project, token, source):
    client = source(token)
    assert client.next()[0] == "snapshot"
    run_one(project)
    client.events(4)
    ApiToken.objects.filter(digest=digest_of(token)).update(revoked_at=timezone.now())
    assert is_cut_off(client)


def test_a_token_that_loses_the_scope_ends_its_stream(project, token, source):
    client = source(token)
    assert client.next()[0] == "snapshot"
    ApiToken.objects.filter(digest=digest_of(token)).update(scopes=[Scope.JOBS_READ])
    assert is_cut_off(client)


def test_a_transaction_that_is_open_for_seconds_is_measured_and_loses_nothing(
    server, project, token, source, database_url
):
    client = source(token)
    assert client.next()[0] == "snapshot"
    with psycopg.connect(database_url) as session:
        session.execute("SELECT pg_current_xact_id()")
        run_one(project)
        eventually(lambda: number(server, "orchestrator_event_reader_behind_seconds") > 2)
        run_one(project)
    seqs = [envelope["integrity"]["sequence"] for envelope in client.events(8)]
    assert seqs == [1, 2, 3, 4] * 2
    eventually(lambda: number(server, "orchestrator_event_reader_behind_seconds") == 0)


def test_the_end_of_the_process_asks_clients_to_return_soon(project, token, source, database_url, tmp_path):
    with serving(tmp_path, DATABASE_URL=database_url) as server:
        clients = [source(token, of=server) for _ in range(3)]
        for client in clients:
            assert client.next()[0] == "snapshot"
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            assert client.next() is None
            assert client.retries == [3000, 1000]


def test_a_client_that_reads_nothing_gets_a_gap_and_delays_no_other(server, project, token, source, database_url):
    slow, quick = source(token, receive_buffer=64 << 10), source(token)
    for client in (slow, quick):
        assert client.next()[0] == "snapshot"
    job = submitted(project)
    assert quick.events(1)[0]["eventType"] == "job.queued"
    for last in range(1, EVENTS, STEP):
        with psycopg.connect(database_url) as session:
            session.execute(MANY_EVENTS, {"job": job.job_ulid, "first": last + 1, "last": last + STEP})
        assert [envelope["integrity"]["sequence"] for envelope in quick.events(STEP)] == [
            *range(last + 1, last + STEP + 1)
        ]
    name, seen = "message", 0
    while name == "message":
        event = slow.next()
        assert event is not None, "no gap"
        name, content = event
        seen += 1
    assert (name, content["reason"], content["until"]) == ("gap", "too_slow", None)
    assert seen < EVENTS
    assert content["events"] == f"/api/events?after={content['after']}"
    assert slow.next() is None
    missing = requests.get(
        f"{server.url}{content['events']}&limit=1", headers={"Authorization": f"Bearer {token}"}, timeout=30
    ).json()["results"]
    assert missing[0]["integrity"]["sequence"] == seen


def test_a_process_of_wsgi_has_no_streams(token, database_url, tmp_path):
    with serving(tmp_path, kind="wsgi", DATABASE_URL=database_url) as server:
        answer = requests.get(server.url + PATH, headers={"Authorization": f"Bearer {token}"}, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_streams")


def test_the_server_did_not_complain(server):
    assert "Traceback" not in server.log()
    assert " ERROR " not in server.log()
