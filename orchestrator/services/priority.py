"""Changes the priority of waiting jobs: by an operator, by a claim, or because an emergency limit was removed."""

from datetime import datetime

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.admission import has_emergency_limit, plan_priority
from runtime_jobs.errors import PriorityForbidden
from runtime_jobs.events import SYSTEM, Actor
from runtime_jobs.models import Job, Organization
from runtime_jobs.plans import UNCLAIMED, plan_of_tier
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import WAITING_STATES, JobState


@operation
def prioritize(
    uow: UnitOfWork, *, job_ulid: str, priority: int, actor: Actor, reason: str, now: datetime | None = None
) -> Job | None:
    """Change the priority of a waiting job. Its age determines its place among jobs of the new priority.

    Args:
        job_ulid: The job.
        priority: The new priority; see `runtime_jobs.priorities`.
        actor: The operator.
        reason: Recorded in the event.

    Returns:
        The job, or None if it does not wait or already has this priority.

    Raises:
        NotFound: The job does not exist.
        PriorityForbidden: The priority is `emergency`, and the organization has no emergency limit.
    """
    allowed = priority < EMERGENCY or _may_be_emergency(job_ulid)
    job, now = transitions.lock_job(job_ulid, now=now)
    if job.state not in WAITING_STATES or job.priority == priority:
        return None
    if not allowed:
        raise PriorityForbidden(f"priority: set an emergency limit for the organization {job.org_slug} first.")
    return _change_priority(uow, job, priority, now=now, actor=actor, reason=reason)


def _may_be_emergency(job_ulid: str) -> bool:
    """Read the emergency limit before the job is locked.

    Whoever removes the limit holds the organization's advisory lock and then waits for the job.
    """
    org_slug = Job.objects.filter(job_ulid=job_ulid).values_list("org_slug", flat=True).first()
    return org_slug is not None and has_emergency_limit(org_slug)


def _change_priority(uow: UnitOfWork, job: Job, priority: int, *, now: datetime, actor: Actor, reason: str) -> Job:
    transitions.change_priority(uow, job, priority, now=now, actor=actor, reason=reason)
    if job.lane_id is not None:
        if job.state == JobState.QUEUED:
            uow.lane_updates.entered.append((job.pk, job.lane_id, job.created_at))
        else:
            uow.lane_updates.kept.append(job.lane_id)
    return transitions.mark_changed(uow, job, now)


def end_emergencies(uow: UnitOfWork, org_slug: str, *, now: datetime) -> int:
    """Give waiting emergency jobs the priority of the plan, because the emergency limit is removed.

    Args:
        org_slug: The organization. The caller holds its advisory lock, so that no emergency job is submitted meanwhile.
        now: Timestamp of the change.

    Returns:
        The number of jobs.
    """
    emergencies = Job.objects.filter(org_slug=org_slug, priority__gte=EMERGENCY, state__in=WAITING_STATES)
    jobs = list(emergencies.locked().order_by("pk"))
    priority = plan_priority(org_slug) if jobs else 0
    for job in jobs:
        _change_priority(uow, job, priority, now=now, actor=SYSTEM, reason=transitions.EMERGENCY_LIMIT_REMOVED)
    return len(jobs)


def raise_queued_priority(organization: Organization, *, limit: int = 100) -> bool:
    """Raise the priority of waiting jobs after the organization was claimed, and got a plan with a higher one.

    Jobs with the priority of the plan `unclaimed` are changed, each in a transaction of its own. No other change of a
    plan moves waiting jobs (document 002).

    Args:
        organization: The organization, with its plan.
        limit: The maximum number of jobs to change in this call.

    Returns:
        Whether all jobs are done.
    """
    former, current = organization.followed_priority or 0, organization.plan.priority
    is_claim = organization.claimed_at is not None and former == plan_of_tier(UNCLAIMED).priority
    job_ulids = _find_waiting(organization.slug, former, limit) if is_claim and current > former else []
    for job_ulid in job_ulids:
        prioritize(
            job_ulid=job_ulid,
            priority=current,
            actor=SYSTEM,
            reason=f"The organization has the plan {organization.plan}.",
        )
    if len(job_ulids) == limit:
        return False
    Organization.objects.filter(pk=organization.pk, followed_priority=former).update(followed_priority=current)
    return True


def _find_waiting(org_slug: str, priority: int, limit: int) -> list[str]:
    """Return waiting jobs, state by state: each state has an index of its own, and both together have none."""
    jobs = Job.objects.filter(org_slug=org_slug, priority=priority).order_by("pk").values_list("job_ulid", flat=True)
    return [job_ulid for state in WAITING_STATES for job_ulid in jobs.filter(state=state)[:limit]][:limit]
