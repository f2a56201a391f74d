"""The WebSocket of GraphQL where threads or a client's buffers are full: refusals, gaps, and clients that are cut off."""

import contextlib
import json
import socket

import psycopg
import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from runtime_jobs.models.tenants import Scope
from tests.factories import OrganizationFactory, ProjectFactory, api_token, submitted
from tests.live_server import eventually, patient, serving
from tests.orchestrator.protocols.stella.events.test_stream import number
from tests.orchestrator.protocols.stella.graph.documents import PATH

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

SECONDS = 60  # of waiting for a message, on a busy machine
JOBS = "{ jobs(first: 1) { results { jobId } } }"
EVENTS = (
    "subscription { jobEvents { snapshot { tenants } gap { reason }"
    " event { integrity { sequence } payload { details } } } }"
)
COUNT, STEP = 800, 50
# 16 MB in all: the buffers of the operating system take megabytes.
MANY_EVENTS = """
INSERT INTO runtime_job_events (event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at,
       org_slug, job_type, correlation_id, fence, prev_hash, hash)
SELECT 'evt_' || lpad(n::text, 26, '0'), %(job)s, n, 'job.prioritized', 'core', 'test',
       jsonb_build_object('reason', repeat('x', 20000)), clock_timestamp(), 'acme', 'runtime', '', 0, '', ''
  FROM generate_series(%(first)s::int, %(last)s::int) n"""


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="acme"))


@pytest.fixture
def token(project):
    return api_token(project.organization, (Scope.ORCH_READ,))


class Line:
    """A client of the protocol that reads nothing but what a test asks for."""

    def __init__(self, opened, token):
        self.socket = opened
        self.send("connection_init", payload={"Authorization": f"Bearer {token}"})

    def send(self, kind, **members):
        self.socket.send(json.dumps({"type": kind, **members}))

    def ask(self, name, query):
        self.send("subscribe", id=name, payload={"query": query})

    def next(self):
        return json.loads(self.socket.recv(timeout=SECONDS))

    def admitted(self):
        assert self.next() == {"type": "connection_ack"}
        return self

    def following(self):
        """Begin to follow events."""
        self.ask("events", EVENTS)
        assert self.next()["payload"]["data"]["jobEvents"]["snapshot"]
        return self

    def event(self):
        """The next message of the subscription that is no sign of life; None at its end."""
        while True:
            message = self.next()
            if message["type"] == "complete":
                return None
            content = message["payload"]["data"]["jobEvents"]
            if content["event"] or content["gap"]:
                return content


@pytest.fixture
def opened():
    """Call it for a client of a server, which is closed with the test."""
    with contextlib.ExitStack() as stack:

        def open_line(server, token, *, receive_buffer=None):
            raw = socket.socket()
            if receive_buffer is not None:  # before the connection, whose window follows from it
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            raw.connect(server.address)
            address = server.url.replace("http", "ws") + PATH
            options = {"compression": None, "max_queue": 1, "close_timeout": 1}
            line = connect(address, sock=raw, subprotocols=["graphql-transport-ws"], **options)
            return Line(stack.enter_context(line), token)

        yield open_line


def waiting(database_url):
    with psycopg.connect(database_url) as session:
        return session.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()[0]


def test_what_cannot_wait_for_a_thread_is_refused_as_overloaded(project, token, opened, database_url, tmp_path):
    submitted(project)
    with (
        serving(tmp_path, DATABASE_URL=patient(database_url), REQUEST_THREADS="1", REQUEST_QUEUE="1") as server,
        psycopg.connect(database_url) as blocker,
    ):
        line = opened(server, token).admitted()
        blocker.execute("LOCK TABLE runtime_jobs IN ACCESS EXCLUSIVE MODE")
        names = {"1", "2", "3", "4"}
        for name in sorted(names):
            line.ask(name, JOBS)
        refused = [line.next() for _ in range(2)]  # one has the thread, and one waits for it
        for message in refused:
            (error,) = message["payload"]
            assert (message["type"], error["extensions"]["code"]) == ("error", "overloaded")
            assert error["extensions"]["status"] == 503
        eventually(lambda: waiting(database_url) == 1)
        late = opened(server, token)
        with pytest.raises(ConnectionClosed) as closed:  # its token cannot be checked now
            late.next()
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "overloaded")
        blocker.rollback()
        answers = [line.next() for _ in range(4)]
        assert sorted(message["type"] for message in answers) == ["complete", "complete", "next", "next"]
        assert {message["id"] for message in answers} == names - {message["id"] for message in refused}
        line.ask("again", JOBS)
        assert line.next()["payload"]["data"]["jobs"]["results"]
        opened(server, token).admitted()


def write_events(database_url, job, readers):
    """Write many events, and let these clients read each step of them."""
    for last in range(1, COUNT, STEP):
        with psycopg.connect(database_url) as session:
            session.execute(MANY_EVENTS, {"job": job.job_ulid, "first": last + 1, "last": last + STEP})
        for reader in readers:
            found = [reader.event()["event"]["integrity"]["sequence"] for _ in range(STEP)]
            assert found == [*range(last + 1, last + STEP + 1)]


def test_a_client_that_reads_nothing_is_cut_off_and_delays_no_other(project, token, opened, database_url, tmp_path):
    job = submitted(project)
    with serving(tmp_path, DATABASE_URL=database_url, RESPONSE_STALL_SECONDS="10") as server:
        slow, quick = (opened(server, token, receive_buffer=size).admitted().following() for size in (32 << 10, None))
        write_events(database_url, job, [quick])
        stalled = 'orchestrator_sockets_ended_total{cause="stalled",kind="graphql"}'
        eventually(lambda: number(server, stalled) == 1)
        eventually(lambda: number(server, "orchestrator_event_listeners") == 1)
        with pytest.raises(ConnectionClosed) as closed:
            all(iter(slow.event, None))  # what was on its way
        assert closed.value.rcvd is None
        assert requests.get(f"{server.url}/healthz", timeout=SECONDS).status_code == 200


def test_a_client_that_reads_too_late_gets_a_gap(project, token, opened, database_url, tmp_path):
    job = submitted(project)
    with serving(tmp_path, DATABASE_URL=database_url, RESPONSE_STALL_SECONDS="250") as server:
        slow, quick = (opened(server, token, receive_buffer=size).admitted().following() for size in (32 << 10, None))
        write_events(database_url, job, [quick])
        seen = 0
        while (content := slow.event())["event"]:
            seen += 1
            assert content["event"]["integrity"]["sequence"] == seen + 1
        assert content["gap"] == {"reason": "too_slow"}
        assert seen < COUNT - 1
        assert slow.event() is None
