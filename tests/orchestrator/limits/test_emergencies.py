"""Jobs that skip the queue are held by one limit, the operator's: no waiting one is ever without it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from leases.models import Lane, LaneQueue, LimitKind
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.services import (
    admission,
    cancellation,
    claiming,
    expiry,
    heartbeat,
    job_end,
    priority,
    retries,
)
from runtime_jobs.errors import PriorityForbidden
from runtime_jobs.models import Job, JobEvent, OperatorEvent
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    submitted,
)

pytestmark = pytest.mark.django_db
ORG, PLAN_PRIORITY = "sandtrace", 200


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug=ORG))


@pytest.fixture
def allowed(project):
    """The organization may run one emergency at a time."""
    set_limit(1)


def set_limit(max_active):
    limited(ORG, kind=LimitKind.EMERGENCY, max_active=max_active, cause=Cause(OPERATOR, "incident 7"))


def lane_priority(job) -> int:
    return LaneQueue.objects.get(pk=Lane.objects.get(pk=job.lane_id).queue_id).priority


def test_removing_the_limit_gives_what_waits_the_priority_of_the_plan(project, allowed):
    first = submitted(project)
    waiting = submitted(project, priority=EMERGENCY)
    blocked = submitted(project, priority=EMERGENCY, depends_on=(waiting,))
    set_limit(None)
    for job in (waiting, blocked):
        job.refresh_from_db()
        assert (job.priority, lane_priority(job)) == (PLAN_PRIORITY, PLAN_PRIORITY)
        event = JobEvent.objects.get(job=job, event_type="job.prioritized")
        assert (event.payload_json["before"], event.payload_json["priority"]) == (EMERGENCY, PLAN_PRIORITY)
    assert run_audit() == []
    limited(ORG, max_active=1, cause=Cause(OPERATOR, "one at a time"))
    worker = WorkerFactory()
    assert claimed(worker).job.pk == first.pk, "by age again"
    assert claiming.claim(worker=worker, offer=offer(worker)) is None


def test_other_limits_and_other_organizations_demote_nothing(project, allowed):
    other = ProjectFactory(organization=OrganizationFactory(slug="other"))
    limited("other", kind=LimitKind.EMERGENCY, max_active=1)
    jobs = [submitted(one, priority=EMERGENCY) for one in (project, other)]
    limited(ORG, max_active=3)
    limited(ORG)
    set_limit(2)
    limited("other", kind=LimitKind.EMERGENCY)
    assert [Job.objects.get(pk=job.pk).priority for job in jobs] == [EMERGENCY, PLAN_PRIORITY]


def test_the_audit_names_a_waiting_emergency_without_a_limit(project, allowed):
    job = submitted(project, priority=EMERGENCY)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM lane_limits WHERE kind = 'emergency'")
        found = {finding.code: finding.broken_for for finding in run_audit()}
        assert found["L11"] == (job.job_ulid,)
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=0)
    LaneQueue.objects.update(limits=[])


@pytest.mark.parametrize("end", ["release", "never acknowledged"])
def test_a_job_that_comes_back_to_the_queue_without_the_limit_is_demoted(project, allowed, end):
    submitted(project, priority=EMERGENCY)
    claim = claimed(acknowledge=True)
    set_limit(None)
    assert Job.objects.get().priority == EMERGENCY, "what runs, runs on"
    if end == "release":
        heartbeat.release(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker)
    else:
        expiry.expire(job_ulid=claim.job.job_ulid, now=claim.lease.expires_at)
    job = Job.objects.get()
    assert (job.state, job.priority, lane_priority(job)) == ("queued", PLAN_PRIORITY, PLAN_PRIORITY)
    assert claimed().job.pk == job.pk
    assert run_audit() == []


@pytest.mark.parametrize("kind", ["automatic", "manual"])
@pytest.mark.parametrize("is_limited", [True, False])
def test_a_retry_skips_the_queue_only_while_there_is_a_limit(project, allowed, kind, is_limited):
    submitted(project, priority=EMERGENCY)
    claim = claimed()
    if not is_limited:
        set_limit(None)
    lease = {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker}
    reason = FailureReason.WORKER_SHUTDOWN if kind == "automatic" else FailureReason.WORKER_ERROR
    job_end.fail(**lease, reason=reason)
    if kind == "manual":
        retries.retry(job_ulid=claim.job.job_ulid, actor=ALICE, reason="again")
    retry = Job.objects.get(retry_of_job_ulid=claim.job.job_ulid)
    assert retry.retry_kind == kind
    assert retry.priority == lane_priority(retry) == (EMERGENCY if is_limited else PLAN_PRIORITY)


def someone_waits_for_the_organization() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 4 AND NOT granted")
        return cursor.fetchone() != (0,)


def until(true) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["submit", "prioritize"])
def test_a_job_that_is_admitted_while_the_limit_is_removed_is_not_left_without_one(monkeypatch, way):
    """The admission reads the limit, then the limit is removed, then the job is stored: the order of the defect."""
    project = ProjectFactory(organization=OrganizationFactory(slug=ORG))
    set_limit(1)
    waiting = submitted(project)
    admitted, removing = threading.Event(), threading.Event()
    has_limit = admission.has_emergency_limit

    def asked(org_slug):
        answer = has_limit(org_slug)
        if threading.current_thread() is not threading.main_thread() and not admitted.is_set():
            admitted.set()
            removing.wait(60)
        return answer

    for module in (admission, priority):
        monkeypatch.setattr(module, "has_emergency_limit", asked)

    def act():
        try:
            if way == "submit":
                return submitted(project, priority=EMERGENCY)
            return priority.prioritize(job_ulid=waiting.job_ulid, priority=EMERGENCY, actor=OPERATOR, reason="x")
        finally:
            connection.close()

    def remove():
        try:
            set_limit(None)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        skipping = pool.submit(act)
        assert admitted.wait(60)
        removal = pool.submit(remove)
        until(lambda: removal.done() or someone_waits_for_the_organization())
        removing.set()
        skipping.result(60)
        removal.result(60)
    assert not Job.objects.filter(priority__gte=EMERGENCY).exists()
    assert OperatorEvent.objects.filter(action="limit.lifted").count() == 1
    assert run_audit() == []
    with pytest.raises(PriorityForbidden):
        submitted(project, priority=EMERGENCY)
