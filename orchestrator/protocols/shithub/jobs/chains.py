"""Starts a new chain of tokens for a job whose runner has lost its token, such as by a response that did not arrive."""

from datetime import datetime

from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_lease
from leases.models import Lease
from orchestrator.core.counters import JWT_ISSUED, count
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.job_tokens.claims import JobToken, TokenPurpose, new_token
from orchestrator.job_tokens.models import TokenChain
from orchestrator.protocols.shithub.errors import not_found
from orchestrator.workflows.job_rows import keep_lease, require_run
from runtime_jobs.specs import ACTIONS
from workers.models import Worker


@operation
def start_chain(
    uow: UnitOfWork, *, runner_id: int, job_id: int, now: datetime | None = None
) -> dict[TokenPurpose, JobToken]:
    """End all older tokens of a job, renew its lease, and return the first tokens of a new chain.

    Args:
        runner_id: The key of the runner, which must have the job.
        job_id: The key of the job.

    Raises:
        ApiError: 404; the runner does not have the job.
    """
    worker = Worker.objects.get(pk=runner_id)
    leases = Lease.objects.open().filter(job__pk=job_id, job__job_type=ACTIONS, worker=worker)
    lease_ulid = leases.values_list("lease_ulid", flat=True).first()
    if lease_ulid is None:
        raise not_found()
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    try:
        keep_lease(uow, locked, worker)
    except StaleLease:
        raise not_found() from None
    number = _raise_chain(locked)
    run = require_run(locked.job)
    tokens = {
        purpose: new_token(
            purpose,
            runner_id=runner_id,
            job_id=job_id,
            run_id=run.pk,
            repository_id=run.repository_id,
            fence=locked.lease.fence,
            chain=number,
            now=locked.now,
        )
        for purpose in TokenPurpose
    }
    for _ in tokens:
        uow.after_commit(count, JWT_ISSUED)
    return tokens


def _raise_chain(locked: LockedLease) -> int:
    """Store the number of the new chain. The lock of the job keeps two calls apart."""
    fence = locked.lease.fence
    chain = TokenChain.objects.filter(job_id=locked.job.pk).first()
    if chain is None:
        chain = TokenChain(job_id=locked.job.pk, fence=fence, number=0)
    chain.number = chain.number + 1 if chain.fence == fence else 1
    chain.fence = fence
    chain.save()
    return chain.number
