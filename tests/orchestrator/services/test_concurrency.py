"""Of the jobs with one concurrency key one runs at a time; the policy of each decides about the others."""

import threading

import pytest
from django.db import connection

from leases.models import Lease, QueueHead
from orchestrator.audit.runner import run_audit
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services import claiming, job_end, retries
from orchestrator.services import expiry as service_expiry
from orchestrator.services import submission as service_submission
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, CancelReason, FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    offer,
    spec,
    submission,
)
from tests.orchestrator.services.test_races import _until_somebody_waits_for_a_lock, together

pytestmark = pytest.mark.django_db


@pytest.fixture
def project(db):
    return ProjectFactory()


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=200)


def submit(project, key: str = "deploy", when_busy: OnConflict = OnConflict.QUEUE):
    given = submission(project, spec(), group=ConcurrencyGroup(key, when_busy))
    return service_submission.submit(given, policy=POLICY, default_pool="shared-linux", actor=ALICE).job


def take(worker):
    claim = claiming.claim(worker=worker, offer=offer(worker))
    return claim and claim.job.job_ulid


def finish(job) -> None:
    lease = Job.objects.get(job_ulid=job.job_ulid).leases.get(state="active")
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason=FailureReason.COMMAND_FAILED)


def ended(job) -> tuple[str, str | None]:
    row = Job.objects.get(job_ulid=job.job_ulid)
    return row.state, row.cancel_reason


def test_one_of_a_key_runs_and_the_next_follows(project, worker):
    first, second, other = submit(project), submit(project), submit(project, "release")
    assert [take(worker), take(worker), take(worker)] == [first.job_ulid, other.job_ulid, None]
    finish(first)
    assert take(worker) == second.job_ulid


def test_a_key_is_the_organizations_own(project, worker):
    one, two = submit(project), submit(ProjectFactory(organization=OrganizationFactory(slug="other")))
    same = submit(ProjectFactory(organization=project.organization, slug="api"))
    assert [take(worker), take(worker), take(worker)] == [one.job_ulid, two.job_ulid, None]
    finish(one)
    assert take(worker) == same.job_ulid


def test_its_lane_alone_is_blocked(project, worker):
    submit(project), submit(project)
    take(worker)
    take(worker)
    assert QueueHead.objects.get().blocked_by is None


def test_the_newest_cancels_those_before_it(project, worker):
    running, waiting = submit(project), submit(project)
    assert take(worker) == running.job_ulid
    newest = submit(project, when_busy=OnConflict.CANCEL_OLDER)
    assert ended(waiting) == ("canceled", CancelReason.SUPERSEDED)
    asked = Job.objects.get(job_ulid=running.job_ulid)
    assert (asked.state in LEASED_STATES, asked.cancel_reason) == (True, CancelReason.SUPERSEDED)
    assert take(worker) is None, "the one that was asked still runs"
    lease = asked.leases.get(state="active")
    job_end.acknowledge_cancel(lease_ulid=lease.lease_ulid, worker=lease.worker)
    assert take(worker) == newest.job_ulid


def test_the_newest_is_dropped_while_another_one_is_there(project, worker):
    first = submit(project, when_busy=OnConflict.DROP_NEW)
    assert ended(submit(project, when_busy=OnConflict.DROP_NEW)) == ("canceled", CancelReason.SUPERSEDED)
    assert take(worker) == first.job_ulid
    assert ended(submit(project, when_busy=OnConflict.DROP_NEW))[0] == "canceled"
    finish(first)
    assert ended(submit(project, when_busy=OnConflict.DROP_NEW))[0] == "queued"
    assert run_audit() == []


def test_a_retry_is_of_the_same_group(project, worker):
    first, second = submit(project), submit(project)
    take(worker)
    finish(first)
    again = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="x").job
    assert again.concurrency_key == "deploy"
    assert [take(worker), take(worker)] == [second.job_ulid, None]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("when_busy", "left"), [(OnConflict.DROP_NEW, 1), (OnConflict.CANCEL_OLDER, 1), (OnConflict.QUEUE, 6)]
)
def test_of_those_that_come_at_once(when_busy, left):
    project = ProjectFactory()
    together(*[lambda: submit(project, when_busy=when_busy) for _ in range(6)])
    assert Job.objects.count() == 6
    assert Job.objects.filter(state="queued").count() == left
    assert run_audit() == []


@pytest.mark.django_db(transaction=True)
def test_claims_at_once_take_one_of_a_key():
    project = ProjectFactory()
    for _ in range(12):
        submit(project)
    workers = [WorkerFactory(capacity=50) for _ in range(6)]
    for _ in range(6):
        together(*[lambda one=one: take(one) for one in workers])
        finish(Job.objects.get(state__in=LEASED_STATES))
    assert run_audit() == []


@pytest.mark.django_db(transaction=True)
def test_the_newest_cancels_also_the_automatic_retry_of_a_job_that_fails_meanwhile(monkeypatch, worker):
    """The submit waits for the row of the job. The retry is inserted by the transaction that it waits for."""
    project = ProjectFactory()
    first = submit(project)
    take(worker)
    Lease.objects.update(expires_at=database_now())
    written, done = threading.Event(), threading.Event()
    original = UnitOfWork.write

    def write_and_wait(uow: UnitOfWork) -> None:
        original(uow)
        if threading.current_thread() is expiry:
            written.set()
            done.wait(60)

    def expire() -> None:
        service_expiry.expire(job_ulid=first.job_ulid)
        connection.close()

    def submit_newest() -> None:
        submit(project, when_busy=OnConflict.CANCEL_OLDER)
        connection.close()

    expiry, newest = threading.Thread(target=expire), threading.Thread(target=submit_newest)
    monkeypatch.setattr(UnitOfWork, "write", write_and_wait)
    expiry.start()
    assert written.wait(60)
    newest.start()
    _until_somebody_waits_for_a_lock()
    done.set()
    expiry.join(60)
    newest.join(60)
    retry = Job.objects.get(retry_of_job_ulid=first.job_ulid)
    assert ended(first)[0] == "failed"
    assert ended(retry) == ("canceled", CancelReason.SUPERSEDED)
    assert Job.objects.filter(state="queued").count() == 1
    assert run_audit() == []
