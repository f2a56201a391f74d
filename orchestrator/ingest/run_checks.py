"""Checks at a completion that ingest has the run that the worker names, uploaded under the same lease."""

from collections.abc import Mapping

from leases.models import Lease
from orchestrator.ingest.models import Run
from runtime_jobs.errors import Invalid, LifecycleError
from workers.models import Worker


class RunMismatch(LifecycleError):
    """The run was uploaded under another lease of the job, by another worker or under another fence."""

    code = "run_mismatch"


def refused_runs(runs: Mapping[str, str], *, owners: Mapping[str, Worker]) -> dict[str, LifecycleError]:
    """Return a refusal for each lease whose run the reference ingest does not hold, uploaded under this lease.

    `Invalid`: the job has no such run. `RunMismatch`: the run is the job's, but was uploaded under another lease. Call
    this before the transaction of the jobs: the compared columns never change.

    Args:
        runs: The run that each lease names, by lease id.
        owners: The worker that names it. Leases of others, and leases that have ended, are left to the fence.
    """
    open_leases = Lease.objects.open().filter(lease_ulid__in=runs) if runs else ()
    leases = [lease for lease in open_leases if lease.worker_id == owners[lease.lease_ulid].worker_id]
    named = Run.objects.filter(run_id__in=runs.values()).defer("payload") if leases else ()
    found = {run.run_id: run for run in named}
    refusals = {lease.lease_ulid: _refusal(lease, found.get(runs[lease.lease_ulid])) for lease in leases}
    return {lease_ulid: refusal for lease_ulid, refusal in refusals.items() if refusal is not None}


def _refusal(lease: Lease, run: Run | None) -> LifecycleError | None:
    if run is None or run.job_id != lease.job_id:
        return Invalid({"result.ingest_run_id": ["Ingest has no such run of this job. Upload the run first."]})
    if run.worker_id == lease.worker_id and _is_of_lease(lease, run):
        return None
    return RunMismatch("This run was uploaded under another lease of the job. Upload the run under this lease.")


def _is_of_lease(lease: Lease, run: Run) -> bool:
    """Report whether the run is of this lease. Without a fence it counts if it was uploaded since the claim."""
    if run.fence is None:
        return run.received_at >= lease.leased_at
    return run.fence == lease.fence
