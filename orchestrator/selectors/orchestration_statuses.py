"""Returns the statuses of document 004 for a page of jobs, with as many queries as for one job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from orchestrator.incidents.models import Incident
from orchestrator.selectors.job_incidents import open_incidents
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason
from orchestrator.selectors.pending_reasons.service import pending_for
from runtime_jobs.models import Job
from runtime_jobs.orchestration_status import OrchestrationStatus, orchestration_status

# A job that waits for one of these reasons is throttled.
THROTTLING = frozenset(
    {
        ReasonCode.POOL_PAUSED,
        ReasonCode.BREAKER_OPEN,
        ReasonCode.ORGANIZATION_LIMIT,
        ReasonCode.SOURCE_ADDRESS_LIMIT,
        ReasonCode.RATE_LIMITED,
    }
)


@dataclass(frozen=True)
class JobStanding:
    """The status of a job, and why it has this status.

    Attributes:
        status: The status.
        reason: Why the job waits, or None.
        place: The position in the queue from 1, or None.
        incident: The open incident of the job, or None.
    """

    status: OrchestrationStatus
    reason: WaitReason | None = None
    place: int | None = None
    incident: Incident | None = None

    @property
    def next_eligible_at(self) -> datetime | None:
        """When a throttled job may start although nothing else changes. None: when a job ends, or not throttled."""
        if self.status != OrchestrationStatus.THROTTLED or self.reason is None:
            return None
        found: datetime | None = self.reason.facts.get("next_at") or self.reason.facts.get("paused_until")
        return found


def standings_of(jobs: Sequence[Job], incidents: Mapping[str, Incident] | None = None) -> dict[int, JobStanding]:
    """Return the standing of each job by the jobs' keys, with at most five queries.

    Args:
        jobs: The newest attempts of jobs.
        incidents: Their open incidents by the ids of the jobs, if these were read already.
    """
    pending = pending_for(jobs)
    incidents = open_incidents(jobs) if incidents is None else incidents
    standings = {}
    for job in jobs:
        reason, incident = pending[job.pk].reason, incidents.get(job.job_ulid)
        status = orchestration_status(
            job.state,
            is_throttled=reason is not None and reason.code in THROTTLING,
            has_incident=incident is not None,
        )
        standings[job.pk] = JobStanding(status, reason, pending[job.pk].place, incident)
    return standings
