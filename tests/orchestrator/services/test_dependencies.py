"""Jobs that wait for others: queued once all of those have succeeded, canceled once one has failed for good."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, transaction
from psycopg.errors import LockNotAvailable

from leases.models import LaneHead
from orchestrator.audit.runner import run_audit
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.maintenance.leases import sweep
from orchestrator.services import bulk_submit, cancellation, claiming, dependency_propagation, expiry, job_end, retries
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from runtime_jobs.errors import InvalidDependency
from runtime_jobs.models import Dependency, EndedDependency, Job, JobEvent
from runtime_jobs.states import CancelReason, FailureReason, JobState
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    offer,
    spec,
    submission,
    submitted,
)
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_heartbeat import speak

pytestmark = pytest.mark.django_db


@pytest.fixture
def project(db):
    return ProjectFactory()


@pytest.fixture
def dead(monkeypatch):
    """The process of each operation dies right after the commit."""
    monkeypatch.setattr(UnitOfWork, "run_after_commit", lambda _: None)


def now_of(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def states(*jobs: Job) -> list[str]:
    return [str(now_of(job).state) for job in jobs]


def succeed(job: Job) -> None:
    """Whoever is next must be this one."""
    claim = claimed()
    assert claim.job.pk == job.pk
    job_end.complete(**speak(claim, ingest_run_id=f"run_{job.pk}"))


def fail(job: Job, reason: FailureReason = FailureReason.WORKER_ERROR) -> None:
    claim = claimed()
    assert claim.job.pk == job.pk
    job_end.fail(**speak(claim, reason=reason))


def cancel(job: Job) -> Job:
    return cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30).job


@contextmanager
def undone() -> Iterator[None]:
    """Roll back what is done in this block."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def event_types(job: Job) -> list[str]:
    return list(JobEvent.objects.of(job.job_ulid).values_list("event_type", flat=True))


def test_a_job_waits_until_all_that_it_depends_on_has_succeeded(project):
    first, second = submitted(project), submitted(project)
    last = submitted(project, depends_on=(first, second))
    assert (last.state, last.public_status) == (JobState.BLOCKED, "queued")
    succeed(first)
    assert states(last) == ["blocked"]
    succeed(second)
    assert states(last) == ["queued"]
    assert claimed().job.pk == last.pk
    assert event_types(last)[:3] == ["job.blocked", "job.unblocked", "job.leased"]
    assert not EndedDependency.objects.exists()


def test_a_blocked_job_is_not_handed_out(project):
    first = submitted(project)
    submitted(project, depends_on=(first,))
    worker = WorkerFactory()
    assert claiming.claim(worker=worker, offer=offer(worker)).job.pk == first.pk
    assert claiming.claim(worker=worker, offer=offer(worker)) is None


def test_when_one_fails_those_that_wait_are_canceled_and_theirs_too(project):
    first, other = submitted(project), submitted(project)
    middle = submitted(project, depends_on=(first, other))
    last = submitted(project, depends_on=(middle,))
    fail(first)
    assert states(middle, last) == ["canceled", "canceled"]
    assert {now_of(job).cancel_reason for job in (middle, last)} == {CancelReason.DEPENDENCY_FAILED}
    assert now_of(middle).cancel_message == f"It depends on {first.job_ulid}, which did not succeed."
    assert event_types(last) == ["job.blocked", "job.canceled"]


def test_a_canceled_one_counts_as_failed(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    cancel(first)
    assert states(last) == ["canceled"]


def test_a_failure_with_an_open_automatic_retry_is_none_yet(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    fail(first, FailureReason.WORKER_SHUTDOWN)
    assert states(first, last) == ["failed", "blocked"]
    claim = claimed()
    assert claim.job.retry_of_job_ulid == first.job_ulid
    job_end.complete(**speak(claim, ingest_run_id="run_2"))
    assert states(last) == ["queued"]


def test_the_last_automatic_retry_fails_for_good(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    fail(first, FailureReason.WORKER_SHUTDOWN)
    claim = claimed()
    expiry.expire(job_ulid=claim.job.job_ulid, now=after(claim.lease.expires_at, 1))
    assert states(claim.job, last) == ["failed", "canceled"]


def test_those_that_have_ended_already_are_looked_at_on_submit(project):
    good, bad = submitted(project), submitted(project)
    succeed(good)
    fail(bad)
    assert submitted(project, depends_on=(good,)).state == JobState.QUEUED
    lost = submitted(project, depends_on=(good, bad))
    assert (lost.state, lost.cancel_reason) == (JobState.CANCELED, CancelReason.DEPENDENCY_FAILED)


def test_any_attempt_stands_for_all_of_them(project):
    first = submitted(project)
    fail(first)
    second = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="again").job
    waiting = [submitted(project, depends_on=(one,)) for one in (first, second)]
    assert states(*waiting) == ["blocked", "blocked"]
    succeed(second)
    assert states(*waiting) == ["queued", "queued"]


def test_who_was_canceled_stays_so_when_the_cause_is_retried(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    fail(first)
    second = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="again").job
    succeed(second)
    assert states(last) == ["canceled"]


def test_a_retry_takes_the_dependencies_over(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    after_last = submitted(project, depends_on=(last,))
    fail(first)
    hopeless = retries.retry(job_ulid=last.job_ulid, actor=OPERATOR, reason="too early").job
    assert states(hopeless) == ["canceled"]
    second = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="again").job
    hopeful = retries.retry(job_ulid=hopeless.job_ulid, actor=OPERATOR, reason="again").job
    assert states(hopeful) == ["blocked"]
    succeed(second)
    assert states(hopeful, after_last) == ["queued", "canceled"]


def test_a_blocked_job_is_canceled_at_once(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    further = submitted(project, depends_on=(last,))
    assert cancel(last).state == JobState.CANCELED
    assert states(further) == ["canceled"]
    succeed(first)
    assert states(last) == ["canceled"]


@pytest.mark.parametrize("whose", ["nobody's", "another organization's"])
def test_only_jobs_of_the_same_organization_may_be_named(project, whose):
    if whose == "nobody's":
        stranger = Job(job_ulid="rtj_01kkygkagq0jk17bx6y1w8c3df")
    else:
        stranger = submitted(ProjectFactory(organization=OrganizationFactory()))
    own = submitted(project)
    with pytest.raises(InvalidDependency) as refused:
        submitted(project, depends_on=(own, stranger))
    assert refused.value.errors == {"depends_on": [f"{stranger.job_ulid} is not a job of this organization."]}


def test_a_refused_entry_of_many_leaves_no_mark_on_anothers_job(project):
    stranger = submitted(ProjectFactory(organization=OrganizationFactory()))
    given = submission(project, spec(), depends_on=(stranger.job_ulid,))
    done = bulk_submit.submit_many([given], policy_for=lambda _: POLICY, default_pool="shared-linux", actor=ALICE)
    assert [error.code for error in done.results] == ["invalid_dependency"]
    assert not now_of(stranger).awaited


def test_the_process_that_ended_the_job_may_die_before_it_looks(project, dead):
    first = submitted(project)
    middle = submitted(project, depends_on=(first,))
    last = submitted(project, depends_on=(middle,))
    cancel(first)
    assert states(middle, last) == ["blocked", "blocked"]
    sweep()
    assert states(middle, last) == ["canceled", "canceled"]
    assert not EndedDependency.objects.exists()


def test_of_many_a_few_are_looked_at_at_once_and_the_rest_by_the_clock(project, monkeypatch):
    monkeypatch.setattr(dependency_propagation, "INLINE_LIMIT", 2)
    first = submitted(project)
    fan = [submitted(project, depends_on=(first,)) for _ in range(7)]
    succeed(first)
    assert states(*fan) == ["queued"] * 2 + ["blocked"] * 5
    assert dependency_propagation.propagate_pending(limit=3) == 3
    assert states(*fan) == ["queued"] * 5 + ["blocked"] * 2
    assert dependency_propagation.propagate_pending(limit=3) == 2
    assert states(*fan) == ["queued"] * 7
    assert not EndedDependency.objects.exists()


def test_the_clock_goes_page_by_page(project, monkeypatch, dead):
    monkeypatch.setattr(dependency_propagation, "PAGE", 2)
    pages, unblock = [], dependency_propagation.unblock
    monkeypatch.setattr(
        dependency_propagation, "unblock", lambda *, job_ulids: pages.append(job_ulids) or unblock(job_ulids=job_ulids)
    )
    first = submitted(project)
    fan = [submitted(project, depends_on=(first,)) for _ in range(5)]
    succeed(first)
    assert dependency_propagation.propagate_pending(limit=100) == 5
    assert pages == [[job.job_ulid for job in fan[:2]], [job.job_ulid for job in fan[2:4]], [fan[4].job_ulid]]
    assert states(*fan) == ["queued"] * 5


def test_those_that_wait_on_do_not_stand_before_the_others(project, monkeypatch):
    """They stay blocked when they are looked at: whoever looked from the front again would see no others."""
    monkeypatch.setattr(dependency_propagation, "INLINE_LIMIT", 1)
    first, other = submitted(project), submitted(project)
    waiting = [submitted(project, depends_on=(first, other)) for _ in range(3)]
    ready = submitted(project, depends_on=(first,))
    succeed(first)
    for _ in range(2):
        dependency_propagation.propagate_pending(limit=2)
    assert states(*waiting, ready) == ["blocked"] * 3 + ["queued"]


def test_a_long_chain_ends_in_short_transactions(project, monkeypatch):
    chain = [submitted(project)]
    for _ in range(30):
        chain.append(submitted(project, depends_on=(chain[-1],)))
    cancel(chain[0])
    assert states(*chain) == ["canceled"] * 9 + ["blocked"] * 22
    sweep()
    assert set(states(*chain)) == {"canceled"}


def test_trouble_with_one_does_not_keep_the_others(project, monkeypatch):
    first = submitted(project)
    fan = [submitted(project, depends_on=(first,)) for _ in range(3)]
    unblock = dependency_propagation.unblock

    def busy(*, job_ulids):
        if fan[0].job_ulid in job_ulids:
            raise OperationalError("lock timeout") from LockNotAvailable()
        return unblock(job_ulids=job_ulids)

    monkeypatch.setattr(dependency_propagation, "unblock", busy)
    succeed(first)
    assert states(*fan) == ["blocked", "queued", "queued"]
    monkeypatch.setattr(dependency_propagation, "unblock", unblock)
    sweep()
    assert states(*fan) == ["queued"] * 3
    assert not EndedDependency.objects.exists()


def test_where_the_database_is_away_nobody_waits_for_it_once_more(project, monkeypatch, caplog):
    """The end is committed and its caller gets the response; the scheduler process handles the others."""
    caplog.set_level(logging.DEBUG)  # `runtime_jobs.db_outage` logs the outage itself
    first = submitted(project)
    fan = [submitted(project, depends_on=(first,)) for _ in range(3)]
    unblock, tried = dependency_propagation.unblock, []

    def away(*, job_ulids):
        tried.append(job_ulids)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(dependency_propagation, "unblock", away)
    succeed(first)
    assert len(tried) == 1
    assert [record.exc_info for record in caplog.records if "left to the scheduler" in record.message] == [None]
    with pytest.raises(OperationalError):
        sweep()
    monkeypatch.setattr(dependency_propagation, "unblock", unblock)
    sweep()
    assert states(*fan) == ["queued"] * 3


def test_a_retry_may_be_the_first_to_wait_for_another_retry(project):
    """A job that failed before the new job was submitted has no dependents; its next attempt has."""
    first = submitted(project)
    fail(first)
    last = submitted(project, depends_on=(first,))
    second = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="again").job
    again = retries.retry(job_ulid=last.job_ulid, actor=OPERATOR, reason="again").job
    succeed(second)
    assert states(again) == ["queued"]


def found(*codes: str) -> list[str]:
    """Return what the audit finds, and which jobs are named."""
    return [f"{finding.code} {' '.join(finding.broken_for)}" for finding in run_audit() if finding.code in codes]


def test_the_audit_sees_who_is_forgotten(project, dead):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    cancel(first)
    assert found("D1") == []
    with undone():
        EndedDependency.objects.all().delete()
        assert found("D1") == [f"D1 {last.job_ulid}"]
    with undone():
        EndedDependency.objects.update(looked_to=last.pk)
        assert found("D1") == [f"D1 {last.job_ulid}"]
    sweep()


def test_the_audit_sees_who_starts_too_early(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    with undone():
        Job.objects.filter(pk=last.pk).update(state=JobState.QUEUED)
        assert found("D2") == [f"D2 {last.job_ulid}"]


def test_the_audit_sees_a_cycle(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    with undone():
        Dependency.objects.create(job=first, on=last)
        assert found("D3") == [f"D3 {first.job_ulid}"]


def test_the_audit_sees_a_blocked_job_in_a_lane(project):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    with undone():
        LaneHead.objects.update(head_id=last.pk)
        assert found("D4") == [f"D4 {last.job_ulid}"]


@pytest.mark.parametrize("when_busy", ["cancel_older", "drop_new", "queue"])
def test_a_job_may_depend_on_one_of_its_own_group(project, when_busy):
    """With `cancel_older` a job cancels what it depends on, and with that itself: no job waits forever."""
    first = submitted(project, group=ConcurrencyGroup("deploy"))
    last = submitted(project, group=ConcurrencyGroup("deploy", OnConflict(when_busy)), depends_on=(first,))
    assert (
        states(first, last)
        == {
            "cancel_older": ["canceled", "canceled"],
            "drop_new": ["queued", "canceled"],
            "queue": ["queued", "blocked"],
        }[when_busy]
    )
