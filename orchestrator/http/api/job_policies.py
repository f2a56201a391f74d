"""The policy of a new job: its type's rules with this installation's durations."""

from django.conf import settings

from runtime_jobs.policy import JobPolicy
from runtime_jobs.specs import JOB_TYPES


def policy_of(job_type: str) -> JobPolicy:
    """Return the policy of new jobs of this type."""
    return JOB_TYPES[job_type].policy(
        lease_ttl_seconds=settings.LEASE_TTL_SECONDS,
        heartbeat_interval_seconds=settings.HEARTBEAT_INTERVAL_SECONDS,
        acknowledge_within_seconds=settings.ACKNOWLEDGE_WITHIN_SECONDS,
        max_requeues=settings.MAX_REQUEUES,
        automatic_retries=settings.AUTOMATIC_RETRIES.get(job_type, 1),
    )
