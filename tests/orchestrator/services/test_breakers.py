"""Where most jobs of a tenant and type fail, no more of them start; one is tried later, and how it ends decides."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection

from leases.models import Breaker, BreakerState, Limit
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.core.row_batches import RowRunner
from orchestrator.incidents import breakers
from orchestrator.incidents.breakers import counts
from orchestrator.incidents.models import Incident, IncidentMode
from orchestrator.maintenance import queues
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import claiming, expiry, heartbeat, job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FAILURE_CLASSES, LEASED_STATES, FailureReason, JobState
from tests.factories import (
    OPERATOR,
    TIMINGS,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    offer,
    submitted_steps,
)
from tests.orchestrator.services.test_races import together

ORG = "sandtrace"
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug=ORG))


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=200)


def take(worker):
    return claiming.claim(worker=worker, offer=offer(worker, job_types=("steps",)))


def end(claim, *, well: bool, reason: FailureReason = FailureReason.WORKER_ERROR) -> None:
    message = {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker}
    if well:
        job_end.complete(**message, exit_code=0)
    else:
        job_end.fail(**message, reason=reason, exit_code=1)


def run(project, worker, outcomes: str) -> None:
    """One job after the other: `+` ends well, `-` fails by its worker, `r` is red: its own command failed."""
    for outcome in outcomes:
        submitted_steps(project)
        reason = FailureReason.COMMAND_FAILED if outcome == "r" else FailureReason.WORKER_ERROR
        end(take(worker), well=outcome == "+", reason=reason)


def state(org: str = ORG) -> str:
    sweep_scheduling()
    found = Breaker.objects.filter(org_slug=org, job_type="steps").first()
    return found.state if found else CLOSED


def cool_down() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lane_breakers SET cool_until = clock_timestamp()")


def opened(project, worker) -> None:
    run(project, worker, "----------")
    assert state() == OPEN


@pytest.mark.django_db
class TestOpening:
    def test_more_than_half_of_the_last_ten_failed(self, project, worker):
        run(project, worker, "++++-----")
        assert state() == CLOSED, "nine say nothing"
        run(project, worker, "-")
        assert state() == OPEN
        submitted_steps(project)
        assert take(worker) is None

    def test_half_of_them_is_not_too_many(self, project, worker):
        run(project, worker, "+-+-+-+-+-")
        assert state() == CLOSED

    def test_old_failures_weigh_nothing(self, project, worker):
        run(project, worker, "----------")
        later = database_now() + timedelta(minutes=11)
        assert breakers.evaluate_breaker(org_slug=ORG, job_type="steps", now=later) is None
        assert breakers.evaluate_breaker(org_slug=ORG, job_type="steps").state == OPEN

    def test_an_incident_says_so(self, project, worker):
        opened(project, worker)
        incident = Incident.objects.get(kind="breaker")
        assert incident.summary == "100% of the last steps jobs of sandtrace failed."
        assert incident.resolved_at is None
        assert incident.incident_ulid.startswith("inc_")

    def test_one_tenants_failures_never_open_anothers(self, project, worker):
        opened(project, worker)
        other = ProjectFactory(organization=OrganizationFactory(slug="other"))
        run(other, worker, "+")
        assert state("other") == CLOSED

    def test_what_runs_runs_on(self, project, worker):
        submitted_steps(project)
        held = take(worker)
        opened(project, worker)
        end(held, well=True)
        assert run_audit() == []


@pytest.mark.django_db
class TestWhatCounts:
    def test_ten_red_jobs_leave_the_eleventh_claimable(self, project, worker):
        """Ten red builds in a row stopped a tenant's CI."""
        run(project, worker, "rrrrrrrrrr")
        assert state() == CLOSED
        submitted_steps(project)
        assert take(worker) is not None
        assert not Incident.objects.exists()

    def test_ten_lost_workers_open_it(self, project, worker):
        for _ in range(10):
            submitted_steps(project, policy=replace(JOB_TYPES["steps"].policy(**TIMINGS), automatic_retries=0))
            lost = take(worker)
            expiry.expire(job_ulid=lost.job.job_ulid, now=lost.lease.expires_at)
        later = database_now() + timedelta(seconds=150)
        breakers.evaluate_breaker(org_slug=ORG, job_type="steps", now=later)
        assert Breaker.objects.get().state == OPEN
        submitted_steps(project)
        assert take(worker) is None

    def test_red_jobs_dilute_what_counts(self, project, worker):
        """They show that the platform runs jobs."""
        run(project, worker, "-----rrrrr")
        assert state() == CLOSED
        run(project, worker, "--")
        assert state() == OPEN

    @pytest.mark.parametrize("reason", FailureReason)
    def test_it_is_the_class_that_counts(self, reason):
        own = {
            *(FailureReason.COMMAND_FAILED, FailureReason.CHECKOUT_FAILED, FailureReason.COMMAND_NOT_FOUND),
            *(FailureReason.IMAGE_PULL_FAILED, FailureReason.IMAGE_INVALID, FailureReason.RESULT_UNREADABLE),
        }
        assert counts("steps", JobState.FAILED, FAILURE_CLASSES[reason]) is (reason not in own)

    def test_an_operator_may_let_red_jobs_count(self, project, worker, settings):
        settings.BREAKER = settings.BREAKER | {"job_failures": ["steps"]}
        run(project, worker, "rrrrrrrrrr")
        assert state() == OPEN
        submitted_steps(project)
        assert take(worker) is None

    def test_a_red_probe_closes_it(self, project, worker):
        opened(project, worker)
        submitted_steps(project)
        cool_down()
        assert state() == HALF_OPEN
        end(take(worker), well=False, reason=FailureReason.COMMAND_FAILED)
        assert state() == CLOSED
        assert run_audit() == []


@pytest.mark.django_db
class TestTrying:
    def test_one_job_is_tried_and_its_success_closes_it(self, project, worker):
        opened(project, worker)
        for _ in range(3):
            submitted_steps(project)
        assert take(worker) is None
        cool_down()
        assert state() == HALF_OPEN
        probe = take(worker)
        assert probe is not None
        assert take(worker) is None
        assert state() == HALF_OPEN
        end(probe, well=True)
        assert take(worker) is None, "the clock has not judged yet"
        assert state() == CLOSED
        assert take(worker) is not None
        assert not Limit.objects.exists()
        assert Incident.objects.get(kind="breaker").resolved_by == "clock:clock"
        assert run_audit() == []

    def test_its_failure_opens_it_again(self, project, worker):
        opened(project, worker)
        submitted_steps(project)
        cool_down()
        sweep_scheduling()
        end(take(worker), well=False)
        assert state() == OPEN
        submitted_steps(project)
        assert take(worker) is None
        assert Incident.objects.filter(kind="breaker").count() == 1, "it is the same trouble"

    def test_a_probe_that_came_to_nothing_is_followed_by_another(self, project, worker):
        opened(project, worker)
        submitted_steps(project)
        cool_down()
        sweep_scheduling()
        probe = take(worker)
        heartbeat.release(lease_ulid=probe.lease.lease_ulid, worker=worker)
        assert take(worker) is None
        assert state() == HALF_OPEN
        again = take(worker)
        assert again.job.pk == probe.job.pk

    def test_what_ran_before_does_not_judge(self, project, worker):
        submitted_steps(project)
        old = take(worker)
        opened(project, worker)
        submitted_steps(project)
        cool_down()
        sweep_scheduling()
        probe = take(worker)
        end(old, well=True)
        assert state() == HALF_OPEN
        end(probe, well=False)
        assert state() == OPEN

    def test_the_failures_of_before_do_not_open_it_after_a_success(self, project, worker):
        opened(project, worker)
        submitted_steps(project)
        cool_down()
        sweep_scheduling()
        end(take(worker), well=True)
        assert state() == CLOSED
        run(project, worker, "-")
        assert state() == CLOSED


@pytest.mark.django_db
class TestEvents:
    def states(self) -> list[tuple]:
        events = OperatorEvent.objects.filter(action__startswith="breaker.").order_by("id")
        assert {(event.org_slug, event.job_type, event.target) for event in events} == {
            (ORG, "steps", f"organization:{ORG}/steps")
        }
        return [(event.action, event.before["state"], event.after["state"]) for event in events]

    def test_each_change_is_one(self, project, worker):
        opened(project, worker)
        submitted_steps(project)
        for well in (False, True):
            cool_down()
            sweep_scheduling()
            end(take(worker), well=well)
            submitted_steps(project)
            sweep_scheduling()
        assert state() == CLOSED
        assert self.states() == [
            ("breaker.opened", CLOSED, OPEN),
            ("breaker.half_opened", OPEN, HALF_OPEN),
            ("breaker.opened", HALF_OPEN, OPEN),
            ("breaker.half_opened", OPEN, HALF_OPEN),
            ("breaker.closed", HALF_OPEN, CLOSED),
        ]
        assert run_audit() == []

    def test_a_reset_is_one(self, project, worker):
        opened(project, worker)
        breakers.reset_breaker(org_slug=ORG, job_type="steps", cause=Cause(OPERATOR, "mended"))
        assert self.states() == [("breaker.opened", CLOSED, OPEN), ("breaker.reset", OPEN, CLOSED)]

    def test_its_incident_opens_and_ends_with_it(self, project, worker):
        opened(project, worker)
        incident = Incident.objects.get(kind="breaker")
        breakers.reset_breaker(org_slug=ORG, job_type="steps", cause=Cause(OPERATOR, "mended"))
        events = OperatorEvent.objects.filter(target=f"incident:{incident.incident_ulid}").order_by("id")
        assert [(event.action, event.org_slug, event.job_type) for event in events] == [
            ("incident.opened", ORG, "steps"),
            ("incident.resolved", ORG, "steps"),
        ]
        assert Incident.objects.filter(kind="job", resolved_at=None).count() == 10, "each job is a dead letter"

    def test_it_may_begin_incident_mode(self, project, worker, settings):
        settings.BREAKER = settings.BREAKER | {"incident_mode_seconds": 3600}
        opened(project, worker)
        mode = IncidentMode.objects.get()
        assert (mode.org_slug, mode.begun_by) == (ORG, "clock:clock")
        assert mode.until - mode.begun_at == timedelta(hours=1)
        assert mode.reason == Incident.objects.get(kind="breaker").summary


@pytest.mark.django_db(transaction=True)
def test_many_workers_at_once_get_one_probe(project):
    opened(project, WorkerFactory(capacity=50))
    for _ in range(10):
        submitted_steps(project)
    cool_down()
    assert state() == HALF_OPEN
    workers = [WorkerFactory(capacity=50) for _ in range(8)]
    for _ in range(3):
        together(*[lambda one=one: take(one) for one in workers])
        assert Job.objects.filter(state__in=LEASED_STATES).count() == 1
    assert run_audit() == []


@pytest.mark.django_db
class TestReset:
    def test_an_operator_closes_it(self, project, worker):
        opened(project, worker)
        submitted_steps(project)
        breakers.reset_breaker(org_slug=ORG, job_type="steps", cause=Cause(OPERATOR, "mended"))
        assert take(worker) is not None
        assert state() == CLOSED, "what failed before counts no more"
        assert Incident.objects.get(kind="breaker").resolved_by == str(OPERATOR)
        assert OperatorEvent.objects.get(action="breaker.reset").reason == "mended"

    def test_what_is_not_open_cannot_be_reset(self, project):
        with pytest.raises(NotFound):
            breakers.reset_breaker(org_slug=ORG, job_type="steps", cause=Cause(OPERATOR, "x"))


@pytest.mark.django_db
class TestPages:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch, settings):
        """Let one job open a breaker, and a page have one row."""
        monkeypatch.setattr(queues, "MAX_ROWS", 1)
        settings.BREAKER = settings.BREAKER | {"least_jobs": 1}

    @pytest.fixture
    def waiting(self, worker, settings):
        """Half-open breakers of organizations that submit nothing more."""
        for number in range(5):
            run(ProjectFactory(organization=OrganizationFactory(slug=f"silent-{number}")), worker, "-")
            breakers.evaluate_breaker(org_slug=f"silent-{number}", job_type="steps")
            cool_down()
            breakers.evaluate_breaker(org_slug=f"silent-{number}", job_type="steps")
        assert set(Breaker.objects.values_list("state", flat=True)) == {HALF_OPEN}

    def test_breakers_that_wait_for_a_job_hide_no_other(self, waiting, project, worker):
        run(project, worker, "-")
        assert state() == OPEN
        cool_down()
        assert state() == HALF_OPEN
        run(project, worker, "+")
        assert state() == CLOSED

    def test_the_breaker_that_is_due_for_longest_is_first(self, worker):
        now = database_now()
        for slug, seconds in (("one", 1), ("two", 2)):
            run(ProjectFactory(organization=OrganizationFactory(slug=slug)), worker, "-")
            breakers.evaluate_breaker(org_slug=slug, job_type="steps")
            Breaker.objects.filter(org_slug=slug).update(cool_until=now - timedelta(seconds=seconds))
        sweep_scheduling()
        assert dict(Breaker.objects.values_list("org_slug", "state")) == {"one": OPEN, "two": HALF_OPEN}
        assert state("one") == HALF_OPEN

    def test_a_breaker_whose_evaluation_fails_hides_no_other(self, project, worker, monkeypatch):
        for slug in ("broken", ORG):
            run(ProjectFactory(organization=OrganizationFactory(slug=slug)), worker, "-")
            breakers.evaluate_breaker(org_slug=slug, job_type="steps")
            cool_down()
        original = breakers.evaluate_breaker

        def evaluate(*, org_slug, **more):
            if org_slug == "broken":
                raise RuntimeError("a bug")
            return original(org_slug=org_slug, **more)

        monkeypatch.setattr(breakers, "evaluate_breaker", evaluate)
        rows = RowRunner()
        assert [queues.evaluate_breakers(rows), queues.evaluate_breakers(rows)] == [0, 1]
        assert Breaker.objects.get(org_slug=ORG).state == HALF_OPEN
