"""Schedules: created, changed, paused, resumed, deleted, and their jobs submitted when they are due or by hand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings

from leases.advisory_locks import RECURRING_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.managed_rows import require_room
from orchestrator.core.operator_events import record_change_of, record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.schedules.cron import CronError, CronTimes
from orchestrator.schedules.models import (
    MAX_MESSAGE_LENGTH,
    MissedPolicy,
    OverlapPolicy,
    Schedule,
    ScheduleStatus,
    ScheduleTick,
    TickOutcome,
)
from orchestrator.schedules.planning import plan_tick
from orchestrator.services.submission import Submission, submit_within
from orchestrator.services.transitions import OperationResult
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, LifecycleError, NotFound, ResourceConflict
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.models import Job, Organization
from runtime_jobs.specs import JobPolicy
from runtime_jobs.states import FINAL_STATES

NO_SCHEDULE: Final = "There is no such schedule, or you may not see it."


@dataclass(frozen=True)
class ScheduleSubmitter:
    """Contains what a submit of a schedule's job needs; see `orchestrator.http.api.schedule_jobs`.

    Attributes:
        submission_of: Returns the request for the next job of a schedule.
        policy_for: Returns the policy of a job type.
        default_pool: The slug of the pool of projects that name none.
    """

    submission_of: Callable[[Schedule], Submission]
    policy_for: Callable[[str], JobPolicy]
    default_pool: str

    def submit(
        self,
        uow: UnitOfWork,
        submission: Submission,
        *,
        actor: Actor,
        idempotency: IdempotentRequest | None,
        now: datetime,
    ) -> OperationResult:
        """Queue a new job within an operation. Raises what `submit` raises."""
        return submit_within(
            uow,
            submission,
            policy=self.policy_for(submission.spec.job_type),
            default_pool=self.default_pool,
            actor=actor,
            idempotency=idempotency,
            now=now,
        )


@dataclass(frozen=True)
class ScheduleTerms:
    """Contains what a client sets of a schedule. `job` was checked by `orchestrator.http.api.schedule_jobs`."""

    name: str
    cron: str
    job: dict[str, Any]
    time_zone: str = "UTC"
    missed: str = MissedPolicy.LATEST
    overlap: str = OverlapPolicy.ALLOW


@operation
def create_schedule(
    _: UnitOfWork,
    *,
    organization: Organization,
    terms: ScheduleTerms,
    cause: Cause,
    idempotency: IdempotentRequest | None = None,
) -> tuple[Schedule, bool]:
    """Create a schedule. Its first job is submitted at the first time after now.

    Args:
        organization: The organization of the jobs.
        terms: The times, the job and the policies.
        idempotency: The key of the request. A repetition returns the schedule of the first one.

    Returns:
        The schedule, and whether it is new.

    Raises:
        Invalid: The expression or the time zone is wrong, or no time follows.
        ResourceConflict: The name is in use, or the organization has as many schedules as it may have.
        NotFound: The schedule that an earlier request with this key has created was deleted.
    """
    advisory_xact_lock(RECURRING_OF_ORGANIZATION, organization.pk)
    created_at = cause.now or database_now()
    schedule = Schedule(organization=organization, created_at=created_at)
    if idempotency and (first := idempotency.bind(schedule.schedule_ulid, now=created_at)) != schedule.schedule_ulid:
        return find_schedule(first), False
    require_room(organization.schedules.all(), settings.SCHEDULES_PER_ORGANIZATION)
    _set_terms(schedule, terms, created_at)
    schedule.save_by(cause.actor, created_at)
    record_event_of(schedule, "created", cause.at(created_at), after=_facts(schedule))
    return schedule, True


@operation
def change_schedule(
    _: UnitOfWork,
    *,
    schedule_ulid: str,
    changes: dict[str, Any],
    cause: Cause,
) -> Schedule:
    """Change the times, the job, the policies or the status of a schedule.

    A change of the times counts from now on: times that have passed are not missed. The same holds for a schedule that
    was paused.

    Args:
        changes: Members of `ScheduleTerms`, and `status`.

    Raises:
        NotFound: The schedule does not exist.
        Invalid: The expression or the time zone is wrong, or no time follows.
        ResourceConflict: The name is in use.
    """
    # The lock of the organization comes first, as in `create_schedule`: it guards the names.
    advisory_xact_lock(RECURRING_OF_ORGANIZATION, find_schedule(schedule_ulid).organization_id)
    schedule = _lock(schedule_ulid)
    changed_at = cause.now or database_now()
    before, times_before = _facts(schedule), (schedule.cron, schedule.time_zone, schedule.status)
    next_before = schedule.next_at
    schedule.status = changes.get("status", schedule.status)
    terms = {name: changes.get(name, value) for name, value in _terms_of(schedule).items()}
    _set_terms(schedule, ScheduleTerms(**terms), changed_at)
    if (schedule.cron, schedule.time_zone, schedule.status) == times_before:
        schedule.next_at = next_before  # a time that is due stays due
    schedule.save_by(cause.actor, changed_at)
    record_change_of(schedule, cause.at(changed_at), before=before, after=_facts(schedule))
    return schedule


@operation
def delete_schedule(
    _: UnitOfWork,
    *,
    schedule_ulid: str,
    cause: Cause,
) -> None:
    """Delete a schedule with the records of its times. Jobs that it has submitted stay.

    Raises:
        NotFound: The schedule does not exist.
    """
    schedule = _lock(schedule_ulid)
    record_event_of(schedule, "deleted", cause, before=_facts(schedule))
    schedule.delete()


@operation
def run_schedule(
    uow: UnitOfWork,
    *,
    schedule_ulid: str,
    submitter: ScheduleSubmitter,
    cause: Cause,
    idempotency: IdempotentRequest | None = None,
) -> OperationResult:
    """Submit the job of a schedule now, also while it is paused. Its next time stays as it is.

    Args:
        submitter: Submits its job.
        idempotency: The key of the request. A repetition returns the first job.

    Raises:
        NotFound: The schedule does not exist.
        ResourceConflict: An earlier job has not ended, and the schedule skips overlapping jobs.
        LifecycleError: Any error of `submit`.
    """
    schedule = _lock(schedule_ulid)
    if idempotency is not None and (first := idempotency.lookup()) is not None:
        return OperationResult(Job.objects.get(job_ulid=first), replayed=True)
    submitted_at = cause.now or database_now()
    if schedule.overlap == OverlapPolicy.SKIP and _has_open_job(schedule):
        raise ResourceConflict("A job of the schedule has not ended, and the schedule skips overlapping jobs.")
    submission = replace(
        submitter.submission_of(schedule),
        trigger_kind="manual",
        trigger_actor=cause.actor.name[:200],
        source_address=cause.source_address,
    )
    result = submitter.submit(uow, submission, actor=cause.actor, idempotency=idempotency, now=submitted_at)
    ScheduleTick.objects.create(
        schedule=schedule,
        due_at=submitted_at,
        outcome=TickOutcome.SUBMITTED,
        is_manual=True,
        job_ulid=result.job.job_ulid,
        created_at=submitted_at,
    )
    record_event_of(schedule, "run", cause.at(submitted_at), after={"job_id": result.job.job_ulid})
    return result


@operation
def submit_due_job(
    uow: UnitOfWork,
    *,
    schedule_ulid: str,
    submitter: ScheduleSubmitter,
    now: datetime | None = None,
) -> ScheduleTick | None:
    """Submit the job of a schedule for the time that is due, and advance the schedule to its next time.

    All of this is one transaction under the lock of the schedule, so that each time has one job, whatever process ends
    when. The job also has an idempotency key: its due time. A refusal is recorded, and the time is over.

    Args:
        submitter: Submits its job.
        now: The present; by default the time of the database after the lock.

    Returns:
        The record of the time. None: nothing is due, because another process was faster or the schedule has changed.
    """
    schedule = _locked().filter(schedule_ulid=schedule_ulid).first()
    present = now or database_now()
    if schedule is None or schedule.next_at is None or schedule.next_at > present:
        return None
    first, times = schedule.next_at, CronTimes(schedule.cron, schedule.time_zone)
    planned = plan_tick(times, MissedPolicy(schedule.missed), first=first, now=present)
    tick = None
    if planned.is_first_missed:
        tick = ScheduleTick(
            schedule=schedule, due_at=first, outcome=TickOutcome.MISSED, missed_before=planned.missed_before
        )
        _store(tick, present)
    if planned.due is not None:
        tick = ScheduleTick(schedule=schedule, due_at=planned.due)
        if schedule.overlap == OverlapPolicy.SKIP and _has_open_job(schedule):
            tick.outcome = TickOutcome.OVERLAPPED
        else:
            _submit(uow, tick, submitter, now=present)
        _store(tick, present)
    schedule.next_at = planned.following
    schedule.save(update_fields=["next_at"])
    return tick


def _submit(uow: UnitOfWork, tick: ScheduleTick, submitter: ScheduleSubmitter, *, now: datetime) -> None:
    """Submit the job of a time, or keep the refusal. Nothing of a refused job is stored."""
    try:
        with uow.savepoint():
            submission = submitter.submission_of(tick.schedule)
            result = submitter.submit(uow, submission, actor=SCHEDULER, idempotency=_key_of(tick), now=now)
    except LifecycleError as refusal:
        tick.outcome, tick.error_code = TickOutcome.REFUSED, refusal.code
        errors = refusal.errors.values() if isinstance(refusal, Invalid) else ()
        tick.message = " ".join([refusal.message, *(text for texts in errors for text in texts)])[:MAX_MESSAGE_LENGTH]
    else:
        tick.outcome, tick.job_ulid = TickOutcome.SUBMITTED, result.job.job_ulid


def _key_of(tick: ScheduleTick) -> IdempotentRequest:
    """Return the idempotency key of a time. A changed body is not another request: the first job of a time counts."""
    due = tick.due_at.astimezone(UTC).isoformat()
    return IdempotentRequest(f"schedule:{tick.schedule.schedule_ulid}", "submit", due, fingerprint="")


def _store(tick: ScheduleTick, now: datetime) -> None:
    tick.created_at = now
    ScheduleTick.objects.bulk_create([tick], ignore_conflicts=True)  # after a time of the database that went back


def _has_open_job(schedule: Schedule) -> bool:
    """Return whether a job of the schedule has not ended. An automatic retry has the key of the first attempt."""
    jobs = Job.objects.filter(org_slug=schedule.organization.slug, concurrency_key=schedule.concurrency_key)
    return jobs.exclude(state__in=FINAL_STATES).exists()


def find_schedule(schedule_ulid: str) -> Schedule:
    """Return a schedule with its organization.

    Raises:
        NotFound: It does not exist.
    """
    schedule = Schedule.objects.select_related("organization").filter(schedule_ulid=schedule_ulid).first()
    if schedule is None:
        raise NotFound(NO_SCHEDULE)
    return schedule


def _lock(schedule_ulid: str) -> Schedule:
    schedule: Schedule | None = _locked().filter(schedule_ulid=schedule_ulid).first()
    if schedule is None:
        raise NotFound(NO_SCHEDULE)
    return schedule


def _locked() -> Any:
    return Schedule.objects.select_for_update(of=("self",), no_key=True).select_related("organization")


def _terms_of(schedule: Schedule) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in ("name", "cron", "job", "time_zone", "missed", "overlap")}


def _set_terms(schedule: Schedule, terms: ScheduleTerms, now: datetime) -> None:
    try:
        times = CronTimes.parse(terms.cron, terms.time_zone, now=now)
    except CronError as error:
        raise Invalid({error.field: [str(error)]}) from None
    same_name = Schedule.objects.filter(organization=schedule.organization, name=terms.name).exclude(pk=schedule.pk)
    if same_name.exists():
        raise ResourceConflict("The organization has a schedule of this name.")
    schedule.name, schedule.cron, schedule.time_zone = terms.name, times.expression, terms.time_zone
    schedule.job, schedule.missed, schedule.overlap = terms.job, terms.missed, terms.overlap
    schedule.next_at = times.next_after(now) if schedule.status == ScheduleStatus.ACTIVE else None


def _facts(schedule: Schedule) -> dict[str, Any]:
    return {name: str(value) if name != "job" else value for name, value in _terms_of(schedule).items()} | {
        "status": str(schedule.status)
    }
