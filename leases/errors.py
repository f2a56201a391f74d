"""What can go wrong with a lease."""

from runtime_jobs.errors import LifecycleError


class StaleLease(LifecycleError):
    """The caller may not speak for the job, and nothing has changed.

    `reason`: `lease_expired`, `lease_revoked`, `lease_ended` or `unknown_lease` (also for another worker's lease:
    no enumeration). `job_status` is there if the job has its final one."""

    code = "stale_lease"

    def __init__(self, reason: str, job_status: str | None = None) -> None:
        facts = {"reason": reason} | ({"job_status": job_status} if job_status else {})
        super().__init__("This lease no longer speaks for its job.", **facts)


class WorkerMismatch(LifecycleError):
    """The `worker_id` of the request is not the token's."""

    code = "worker_mismatch"
