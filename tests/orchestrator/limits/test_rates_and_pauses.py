"""Temporary restrictions: starts per hour, pauses, throttles. Nothing is refused; jobs start when they end."""

from datetime import timedelta

import pytest
from django.db import connection

from leases.models import Limit, LimitKind, LimitScope, QueueHead
from leases.scheduling.limits import LimitTarget
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import claiming, heartbeat
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, VersionConflict
from runtime_jobs.models import OperatorEvent
from tests.factories import (
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    limited,
    offer,
    submitted,
    submitted_steps,
)
from tests.orchestrator.services.test_races import together

pytestmark = pytest.mark.django_db

ORG = "sandtrace"
WHY = {"cause": Cause(OPERATOR, "test")}
HOUR = timedelta(hours=1)


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug=ORG))


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=200)


def take(worker):
    return claiming.claim(worker=worker, offer=offer(worker))


def takes(worker, most: int = 20) -> int:
    """Count the jobs that it gets, one after the other."""
    return next(number for number in range(most + 1) if take(worker) is None)


def later(hours: float) -> None:
    """Let time pass for everything that is held until a time."""
    for table, column in (("lane_limits", "spent_until"), ("lane_limits", "until"), ("lane_limits", "set_at")):
        _earlier(table, column, hours)
    for table in ("lane_heads", "queue_heads"):
        _earlier(table, "eligible_at", hours)


def _earlier(table: str, column: str, hours: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {column} - %s", [timedelta(hours=hours)])


def submit(project, number: int) -> None:
    for _ in range(number):
        submitted(project)


class TestRates:
    def test_a_burst_starts_at_once_and_the_rest_as_the_bucket_fills(self, project, worker):
        limited(ORG, kind=LimitKind.RATE, per_hour=6, burst=3, **WHY)
        submit(project, 10)
        assert takes(worker) == 3
        later(hours=1 / 6)
        sweep_scheduling()
        assert takes(worker) == 1
        later(hours=10)
        sweep_scheduling()
        assert takes(worker) == 3, "never more than the burst is saved up"

    def test_who_waits_knows_until_when(self, project, worker):
        limited(ORG, kind=LimitKind.RATE, per_hour=60, **WHY)
        submit(project, 2)
        assert takes(worker) == 1
        queue = QueueHead.objects.get()
        assert queue.blocked_by == Limit.objects.get().pk
        assert abs(queue.eligible_at - database_now() - timedelta(minutes=1)) < timedelta(seconds=20)

    def test_it_holds_no_other_tenant_and_no_other_type(self, project, worker):
        limited(ORG, "steps", kind=LimitKind.RATE, per_hour=1, **WHY)
        submit(project, 3)
        assert takes(worker) == 3
        limited("other", kind=LimitKind.RATE, per_hour=1, **WHY)
        submit(project, 3)
        assert takes(worker) == 3

    def test_a_raised_rate_lets_go_on_at_once(self, project, worker):
        limited(ORG, kind=LimitKind.RATE, per_hour=1, **WHY)
        submit(project, 5)
        assert takes(worker) == 1
        limited(ORG, kind=LimitKind.RATE, per_hour=3600, burst=10, **WHY)
        assert takes(worker) == 4

    def test_a_lifted_rate_holds_nobody(self, project, worker):
        limited(ORG, kind=LimitKind.RATE, per_hour=1, **WHY)
        submit(project, 5)
        assert takes(worker) == 1
        limited(ORG, kind=LimitKind.RATE, **WHY)
        assert takes(worker) == 4
        assert not QueueHead.objects.exclude(blocked_by=None, eligible_at=None).exists()
        assert run_audit() == []

    def test_the_audit_counts_starts(self, project, worker):
        submit(project, 3)
        limited(ORG, kind=LimitKind.RATE, per_hour=1, **WHY)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lane_queues SET limits = '{}'")
        assert takes(worker) == 3
        assert {finding.code for finding in run_audit()} == {"L7", "L9"}
        limited(ORG, kind=LimitKind.RATE, **WHY)


class TestPauses:
    @pytest.mark.parametrize(
        "subject",
        [
            LimitTarget.of_organization(ORG),
            LimitTarget.of_organization(ORG, "runtime"),
            LimitTarget(LimitScope.PROJECT, ORG, "web"),
            LimitTarget(LimitScope.POOL, "", "shared-linux"),
            LimitTarget(LimitScope.JOB_TYPE, "", "runtime"),
        ],
        ids=str,
    )
    def test_nothing_starts_until_somebody_resumes(self, project, worker, subject):
        submit(project, 2)
        limited(subject, kind=LimitKind.PAUSE, max_active=0, **WHY)
        assert takes(worker) == 0
        submit(project, 1)
        assert takes(worker) == 0
        limited(subject, kind=LimitKind.PAUSE, **WHY)
        assert takes(worker) == 3
        assert run_audit() == []

    @pytest.mark.parametrize(
        "subject",
        [
            LimitTarget.of_organization("other"),
            LimitTarget.of_organization(ORG, "steps"),
            LimitTarget(LimitScope.PROJECT, ORG, "api"),
            LimitTarget(LimitScope.PROJECT, "other", "web"),
            LimitTarget(LimitScope.POOL, "", "elsewhere"),
            LimitTarget(LimitScope.JOB_TYPE, "", "steps"),
        ],
        ids=str,
    )
    def test_it_holds_nothing_else(self, project, worker, subject):
        limited(subject, kind=LimitKind.PAUSE, max_active=0, **WHY)
        submit(project, 2)
        assert takes(worker) == 2

    @pytest.mark.parametrize(
        "scope", [(LimitScope.POOL, "", "shared-linux"), (LimitScope.PROJECT, ORG, "web")], ids=str
    )
    def test_it_ends_by_itself_at_its_time(self, project, worker, scope):
        submit(project, 3)
        subject = LimitTarget(*scope)
        limited(subject, kind=LimitKind.PAUSE, max_active=0, until=database_now() + HOUR, **WHY)
        assert takes(worker) == 0
        sweep_scheduling()
        assert takes(worker) == 0
        later(hours=1)
        sweep_scheduling()
        assert takes(worker) == 3
        assert not Limit.objects.exists()
        assert OperatorEvent.objects.filter(action="limit.lifted", actor="clock:clock").count() == 1
        assert run_audit() == []

    def test_it_ends_at_its_time_also_while_the_clock_stands_still(self, project, worker):
        submit(project, 2)
        limited(
            LimitTarget(LimitScope.PROJECT, ORG, "web"),
            kind=LimitKind.PAUSE,
            max_active=0,
            until=database_now() + HOUR,
            **WHY,
        )
        assert takes(worker) == 0
        later(hours=1)
        assert takes(worker) == 2

    def test_many_tenants_of_a_paused_type_hold_up_nobody(self, project, worker):
        for number in range(20):
            submitted_steps(ProjectFactory(organization=OrganizationFactory(slug=f"org-{number}")))
        limited(LimitTarget(LimitScope.JOB_TYPE, "", "steps"), kind=LimitKind.PAUSE, max_active=0, **WHY)
        wanted = submitted(project)
        claim = claiming.claim(worker=worker, offer=offer(worker, job_types=("steps", "runtime")))
        assert claim is not None
        assert claim.job.pk == wanted.pk

    def test_what_runs_runs_on_and_who_why_until_when_is_kept(self, project, worker):
        submit(project, 2)
        held = take(worker)
        until = database_now() + HOUR
        limit = limited(ORG, kind=LimitKind.PAUSE, max_active=0, until=until, **WHY)
        heartbeat.renew(lease_ulid=held.lease.lease_ulid, worker=worker)
        assert (limit.set_by, limit.note, limit.until) == (str(OPERATOR), "test", until)
        event = OperatorEvent.objects.get(action="limit.set")
        assert (event.target, event.after["until"]) == (f"organization:{ORG}", until.isoformat())

    def test_what_is_not_paused_cannot_be_resumed(self, db):
        with pytest.raises(NotFound):
            limited(ORG, kind=LimitKind.PAUSE, **WHY)

    def test_a_pause_that_is_over_already_is_refused(self, db):
        with pytest.raises(Invalid):
            limited(ORG, kind=LimitKind.PAUSE, max_active=0, until=database_now() - HOUR, **WHY)


class TestThrottles:
    @pytest.mark.parametrize(
        "subject",
        [
            LimitTarget.of_organization(ORG),
            LimitTarget(LimitScope.PROJECT, ORG, "web"),
            LimitTarget(LimitScope.POOL, "", "shared-linux"),
            LimitTarget(LimitScope.JOB_TYPE, "", "runtime"),
        ],
        ids=str,
    )
    def test_few_start_for_a_while(self, project, worker, subject):
        submit(project, 6)
        limited(subject, kind=LimitKind.THROTTLE, per_hour=1, burst=2, until=database_now() + HOUR, **WHY)
        assert takes(worker) == 2
        later(hours=1.01)
        sweep_scheduling()
        assert takes(worker) == 4
        assert not Limit.objects.filter(kind=LimitKind.THROTTLE).exists()

    def test_an_end_of_what_is_not_throttled_is_refused(self, db):
        with pytest.raises(NotFound):
            limited(ORG, kind=LimitKind.THROTTLE, **WHY)


class TestVersions:
    def test_a_change_of_what_was_changed_meanwhile_is_refused(self, project):
        first = limited(ORG, max_active=3, if_versions={0}, **WHY)
        second = limited(ORG, max_active=4, if_versions={first.version}, **WHY)
        assert (first.version, second.version) == (1, 2)
        with pytest.raises(VersionConflict) as refused:
            limited(ORG, max_active=5, if_versions={first.version}, **WHY)
        assert refused.value.facts == {"version": 2}
        assert Limit.objects.get().max_active == 4


@pytest.mark.django_db(transaction=True)
def test_of_two_changes_of_one_version_at_once_one_is_refused():
    ProjectFactory(organization=OrganizationFactory(slug=ORG))
    version = limited(ORG, max_active=1, **WHY).version
    for _ in range(10):
        changes = [
            lambda most=most, seen=version: limited(ORG, max_active=most, if_versions={seen}, **WHY) for most in (2, 3)
        ]
        answers = together(*changes)
        assert [isinstance(answer, VersionConflict) for answer in answers].count(True) == 1
        version += 1
