"""Pages of events: each event once, in the order of each job, whatever commits when; and only those of a tenant."""

import contextlib

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.events.pages import JOB, OPERATOR, Place, events_of_job, is_future, newest_place, read_page
from orchestrator.events.search import find_events
from orchestrator.services import cancellation, job_end, retries
from runtime_jobs.models import Job, JobEvent
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, claimed, submitted
from tests.factories import OPERATOR as OLGA
from tests.older_transactions import wait_for_older_transactions

pytestmark = pytest.mark.django_db(transaction=True)  # pages end below the oldest open transaction


def types_of(page):
    return [event.event_type for event in page.events]


@contextlib.contextmanager
def open_transaction():
    """A transaction of another connection, which has an id."""
    # The connection itself is closed, and not only its session: else the pool waits for its return.
    with contextlib.closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_current_xact_id()")
        try:
            yield cursor
        finally:
            cursor.execute("COMMIT")


def test_a_page_has_what_its_envelope_needs():
    start = newest_place()
    job = submitted()
    lease = claimed().lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed", exit_code=3)
    wait_for_older_transactions()
    page = read_page(start, organizations=None, rows=100)
    assert types_of(page) == ["job.queued", "job.leased", "job.started", "job.failed"]
    assert [event.state for event in page.events] == ["queued", "leased", "starting", "failed"]
    assert [event.seq for event in page.events] == [1, 2, 3, 4]
    assert {(event.job_id, event.root_job_id, event.attempt) for event in page.events} == {
        (job.job_ulid, job.job_ulid, 1)
    }
    assert [event.lease_id for event in page.events] == [None, *[lease.lease_ulid] * 3]
    *_, last = page.events
    assert (last.exit_code, last.verdict, last.details["reason"]) == (3, None, "command_failed")
    assert last.seconds >= 0
    assert [event.seconds for event in page.events[:3]] == [None] * 3
    stored = JobEvent.objects.of(job.job_ulid)
    assert [(event.prev_hash, event.hash) for event in page.events] == list(stored.values_list("prev_hash", "hash"))
    assert page.is_complete
    assert page.seconds_behind == 0


def test_an_event_without_a_transition_has_the_state_before_it():
    start = newest_place()
    job = submitted()
    claimed()
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    wait_for_older_transactions()
    *_, last = read_page(start, organizations=None, rows=100).events
    assert (last.event_type, last.state) == ("job.cancel_requested", "starting")


def test_the_state_before_a_page_is_looked_up_once_for_each_job():
    """A job may have thousands of events without a transition, and a page has hundreds of them."""
    start = newest_place()
    jobs = [submitted(), submitted()]
    with connection.cursor() as cursor:
        for job in jobs * 30:
            cursor.execute(WRITE, {"job": job.job_ulid})
    wait_for_older_transactions()
    first = read_page(start, organizations=None, rows=20)
    with CaptureQueriesContext(connection) as queries:
        second = read_page(first.place, organizations=None, rows=40)
    for page in (first, second):
        assert [event.state for event in page.events] == ["queued"] * len(page.events)
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + queries[-1]["sql"])
        (plan,) = cursor.fetchone()[0]
    look_ups = [node for node in nodes_of(plan["Plan"]) if node.get("Alias") == "p"]
    assert sum(node["Actual Loops"] for node in look_ups) == len(jobs)


def nodes_of(plan):
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes_of(inner)


def test_nothing_is_passed_over_while_a_transaction_is_open_and_the_delay_is_known():
    start = newest_place()
    with open_transaction():
        submitted()
        page = read_page(start, organizations=None, rows=100)
        assert page.events == []
        assert page.is_complete
        assert page.seconds_behind > 0
    wait_for_older_transactions()
    later = read_page(page.place, organizations=None, rows=100)
    assert types_of(later) == ["job.queued"]
    assert later.seconds_behind == 0


def test_pages_follow_one_another_and_count_the_events_of_others():
    start = newest_place()
    mine, other = (ProjectFactory(organization=OrganizationFactory(slug=slug)) for slug in ("mine", "other"))
    for _ in range(3):
        submitted(other), submitted(mine)
    wait_for_older_transactions()
    place, found, scanned = start, [], 0
    while True:
        page = read_page(place, organizations=["mine"], rows=2)
        assert page.place > place
        place, scanned = page.place, scanned + page.scanned
        found += page.events
        if page.is_complete:
            break
        assert page.seconds_behind > 0
    assert scanned == 6
    assert [event.org_slug for event in found] == ["mine"] * 3
    assert [event.place for event in found] == sorted(event.place for event in found)


def test_events_of_operators_join_where_tenants_may_read_them():
    start = newest_place()
    with transaction.atomic():
        for action, org_slug in (("limit.set", "mine"), ("token.created", "mine"), ("breaker.opened", None)):
            record_operator_event(action, target="it", cause=Cause(OLGA, "why"), org_slug=org_slug, after={"a": 1})
    wait_for_older_transactions()
    assert types_of(read_page(start, organizations=["mine"], rows=100)) == ["limit.set"]
    page = read_page(start, organizations=None, rows=100)
    assert types_of(page) == ["limit.set", "breaker.opened"]
    event = page.events[0]
    assert event.place.kind == OPERATOR
    assert event.details == {"target": "it", "before": None, "after": {"a": 1}, "reason": "why"}
    rest = read_page(event.place, organizations=None, rows=100)
    assert types_of(rest) == ["breaker.opened"], "each once, also among events of one transaction"


def test_events_of_jobs_and_operators_of_one_transaction_have_one_order():
    start = newest_place()
    with open_transaction():  # all stamps are the same then, or nearly
        submitted()
        record_operator_event("limit.set", target="it", cause=Cause(OLGA))
        submitted()
        record_operator_event("limit.set", target="it", cause=Cause(OLGA))
    wait_for_older_transactions()
    found, place = [], start
    for _ in range(4):
        page = read_page(place, organizations=None, rows=1)
        found += page.events
        place = page.place
    assert len({event.event_id for event in found}) == 4
    assert [event.place for event in found] == sorted(event.place for event in found)


def test_a_place_ahead_of_the_database_is_in_the_future():
    assert not is_future(newest_place())
    assert not is_future(Place(0))
    assert is_future(Place(newest_place().stamp + 1000, JOB, 5))


def test_the_events_of_all_attempts_of_a_job_in_pages():
    job = submitted()
    lease = claimed().lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed")
    retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again")
    attempts = list(Job.objects.order_by("attempt").values_list("job_ulid", "attempt"))
    whole = events_of_job(attempts, after=(0, 0), rows=100)
    keys = [(event.attempt, event.seq) for event in whole]
    assert keys == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]
    assert {event.root_job_id for event in whole} == {job.job_ulid}
    assert [(e.attempt, e.seq) for e in events_of_job(attempts, after=(1, 3), rows=2)] == [(1, 4), (2, 1)]


def test_a_search_is_bounded_and_continues_at_its_place(monkeypatch):
    monkeypatch.setattr("orchestrator.events.search.ROWS_PER_PAGE", 2)
    monkeypatch.setattr("orchestrator.events.search.MAX_SCANNED", 4)
    start = newest_place()
    jobs = [submitted() for _ in range(6)]
    last = jobs[-1].job_ulid
    wait_for_older_transactions()
    first = find_events(start, organizations=None, matches=lambda event: event.job_id == last, limit=10)
    assert (first.events, first.is_complete) == ([], False)
    second = find_events(first.place, organizations=None, matches=lambda event: event.job_id == last, limit=10)
    assert [event.job_id for event in second.events] == [last]
    limited = find_events(start, organizations=None, matches=lambda _: True, limit=3)
    assert [event.job_id for event in limited.events] == [job.job_ulid for job in jobs[:3]]
    assert limited.place == limited.events[-1].place


SESSIONS, JOBS = 4, 3
WRITES = st.tuples(st.just("write"), st.integers(0, SESSIONS - 1), st.integers(0, JOBS - 1))
COMMITS = st.tuples(st.just("commit"), st.integers(0, SESSIONS - 1))
ACTIONS = st.one_of(
    st.tuples(st.just("take an id"), st.integers(0, SESSIONS - 1)),
    *(WRITES, WRITES, WRITES),
    *(COMMITS, COMMITS),
    st.tuples(st.just("roll back"), st.integers(0, SESSIONS - 1)),
    st.tuples(st.just("read")),
    st.tuples(st.just("operate"), st.integers(0, SESSIONS - 1)),
)
# A claim has its transaction before it takes a job that a later one has submitted.
OLDER_THAN_ITS_PREDECESSOR = [
    *(("take an id", 0), ("write", 1, 0), ("commit", 1), ("write", 0, 0), ("read",), ("commit", 0), ("read",)),
]
WRITE = """
INSERT INTO runtime_job_events (event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at,
       org_slug, job_type, correlation_id, fence, prev_hash, hash)
SELECT 'evt_' || gen_random_uuid()::text::varchar(26), %(job)s::varchar, max(seq) + 1, 'job.progress', 'core', 'test', '{}',
       clock_timestamp(), 'sandtrace', 'runtime', '', 0, '', '' FROM runtime_job_events WHERE job_ulid = %(job)s::varchar"""
OPERATE = """
INSERT INTO operator_events (event_ulid, action, actor, target, reason, created_at)
VALUES (left('evt_' || gen_random_uuid()::text, 30), 'limit.set', 'core:test', 'it', '', clock_timestamp())"""


class Interleaving:
    """Transactions of several connections that begin, write and end in any order, and a reader among them."""

    def __init__(self, sessions, jobs):
        self.sessions, self.jobs = sessions, jobs
        for session in sessions:
            session.execute("ROLLBACK")  # of an example that has failed
        wait_for_older_transactions()
        self.place, self.found = newest_place(), []

    def run(self, actions):
        for name, *numbers in actions:
            getattr(self, name.replace(" ", "_"))(*numbers)
        for session in self.sessions:
            session.execute("COMMIT")
        wait_for_older_transactions()
        self.read(), self.read()

    def take_an_id(self, number):
        self.sessions[number].execute("BEGIN")
        self.sessions[number].execute("SELECT pg_current_xact_id()")

    def write(self, number, job):
        session = self.sessions[number]
        session.execute("BEGIN")
        session.execute(
            "SELECT id FROM runtime_jobs WHERE job_ulid = %s FOR NO KEY UPDATE SKIP LOCKED", [self.jobs[job]]
        )
        if session.fetchone():
            session.execute(WRITE, {"job": self.jobs[job]})

    def operate(self, number):
        self.sessions[number].execute("BEGIN")
        self.sessions[number].execute(OPERATE)

    def commit(self, number):
        self.sessions[number].execute("COMMIT")

    def roll_back(self, number):
        self.sessions[number].execute("ROLLBACK")

    def read(self):
        page = read_page(self.place, organizations=None, rows=1000)
        self.place = page.place
        self.found += page.events


@pytest.mark.filterwarnings("ignore")
def test_any_interleaving_of_commits_is_read_once_and_in_the_order_of_each_job():
    jobs = [submitted().job_ulid for _ in range(JOBS)]
    with contextlib.ExitStack() as opened:
        sessions = []
        for _ in range(SESSIONS):
            other = opened.enter_context(contextlib.closing(connection.copy()))
            sessions.append(opened.enter_context(other.cursor()))

        @settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
        @example(OLDER_THAN_ITS_PREDECESSOR)
        @given(st.lists(ACTIONS, min_size=20, max_size=60))
        def check(actions):
            before = set(JobEvent.objects.values_list("event_ulid", flat=True))
            interleaving = Interleaving(sessions, jobs)
            interleaving.run(actions)
            of_jobs = [event for event in interleaving.found if event.place.kind == JOB]
            written = set(JobEvent.objects.values_list("event_ulid", flat=True)) - before
            assert {event.event_id for event in of_jobs} == written
            assert len(of_jobs) == len(written)
            for job in jobs:
                seqs = [event.seq for event in of_jobs if event.job_id == job]
                assert seqs == sorted(seqs)

        check()
