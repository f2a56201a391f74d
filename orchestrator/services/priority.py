"""A waiting job's priority changes: an operator lifts it, or its organization has got a better plan."""

from datetime import datetime

from orchestrator.services import transitions
from orchestrator.services.admission import has_emergency_lane, plan_priority
from orchestrator.services.unit_of_work.operation import lane_updates, operation
from runtime_jobs.errors import PriorityForbidden
from runtime_jobs.events import SYSTEM, Actor
from runtime_jobs.models import Job, Organization
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import WAITING_STATES, JobState


@operation
def prioritize(*, job_ulid: str, priority: int, actor: Actor, reason: str, now: datetime | None = None) -> Job | None:
    """Let a waiting job wait with another priority, at the place that its age gives it there. None: it waits no more.

    Raises NotFound, and PriorityForbidden for the emergency lane of an organization that has none."""
    may_skip = priority < EMERGENCY or _has_emergency_lane(job_ulid)
    job, at = transitions.lock_job(job_ulid, now=now)
    if job.state not in WAITING_STATES or job.priority == priority:
        return None
    if not may_skip:
        raise PriorityForbidden("The organization has no emergency lane: set its limit first.")
    return _with_priority(job, priority, at=at, actor=actor, reason=reason)


def _has_emergency_lane(job_ulid: str) -> bool:
    """Ask before the job is locked: who removes the limit holds the organization's lock and then waits for the job."""
    org_slug = Job.objects.filter(job_ulid=job_ulid).values_list("org_slug", flat=True).first()
    return org_slug is not None and has_emergency_lane(org_slug)


def _with_priority(job: Job, priority: int, *, at: datetime, actor: Actor, reason: str) -> Job:
    transitions.change_priority(job, priority, at=at, actor=actor, reason=reason)
    if job.lane_id is not None:
        if job.state == JobState.QUEUED:
            lane_updates().entered.append((job.pk, job.lane_id, job.created_at))
        else:
            lane_updates().kept.append(job.lane_id)
    return transitions.mark_dirty(job, at)


def end_emergencies(org_slug: str, *, at: datetime) -> int:
    """Give the organization's waiting emergency jobs the priority of its plan; part of removing their limit.

    The caller holds the organization's lock, so that no emergency job comes in meanwhile. Returns how many there were.
    """
    skipping = Job.objects.filter(org_slug=org_slug, priority__gte=EMERGENCY, state__in=WAITING_STATES)
    jobs = list(skipping.locked().order_by("pk"))
    priority = plan_priority(org_slug) if jobs else 0
    for job in jobs:
        _with_priority(job, priority, at=at, actor=SYSTEM, reason=transitions.LIMIT_IS_GONE)
    return len(jobs)


def raise_queued_priority(organization: Organization, *, limit: int = 100) -> bool:
    """Bring `most` of the jobs that wait up to a plan that has become better, one transaction each: those that have the
    priority of the plan as it was. A worse plan changes nothing for them. Returns whether all is done."""
    before, now = organization.followed_priority or 0, organization.plan.priority
    lifted = _waiting(organization.slug, before, limit) if now > before else []
    for job_ulid in lifted:
        prioritize(job_ulid=job_ulid, priority=now, actor=SYSTEM, reason=f"The plan is {organization.plan} now.")
    if len(lifted) == limit:
        return False
    Organization.objects.filter(pk=organization.pk, followed_priority=before).update(followed_priority=now)
    return True


def _waiting(org_slug: str, priority: int, limit: int) -> list[str]:
    """State by state: each has an index of its own, both together have none."""
    jobs = Job.objects.filter(org_slug=org_slug, priority=priority).order_by("pk").values_list("job_ulid", flat=True)
    return [job_ulid for state in WAITING_STATES for job_ulid in jobs.filter(state=state)[:limit]][:limit]
