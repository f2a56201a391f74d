"""Refusals that concern a lease."""

from runtime_jobs.errors import LifecycleError


class StaleLease(LifecycleError):
    """The caller does not hold a valid lease of the job, and nothing has changed.

    `reason`: `lease_expired`, `lease_revoked`, `lease_ended` or `unknown_lease` (also for the lease of another worker:
    ids cannot be enumerated). `job_status` is present if the job has ended.
    """

    code = "stale_lease"

    def __init__(self, reason: str, job_status: str | None = None) -> None:
        facts = {"reason": reason} | ({"job_status": job_status} if job_status else {})
        super().__init__("The lease is unknown, ended, expired or revoked. Stop the job and claim again.", **facts)


class WorkerLocked(Exception):
    """A claim of several workers has left this one out: another transaction has its row. It may claim by itself."""


class WorkerMismatch(LifecycleError):
    """The `worker_id` of the request is not that of the token."""

    code = "worker_mismatch"
