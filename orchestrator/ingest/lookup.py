"""Does ingest really hold the run that a worker says it uploaded?"""

from collections.abc import Mapping

from leases.models import Lease
from orchestrator.ingest.models import Run
from runtime_jobs.errors import Invalid
from workers.models import Worker


def require_run(*, run_id: str, lease_ulid: str, worker: Worker) -> None:
    """Raise Invalid unless the reference ingest holds this run for the job of this lease.

    Asked before the job's transaction. A lease that does not count is left to the fence to refuse."""
    if missing_runs({lease_ulid: run_id}, worker=worker):
        raise no_such_run()


def missing_runs(runs: Mapping[str, str], *, worker: Worker) -> set[str]:
    """The leases, of these with the run that each names, whose job has no such run in the reference ingest."""
    mine = Lease.objects.open().filter(lease_ulid__in=runs, worker=worker)
    held = dict(mine.values_list("lease_ulid", "job_id"))
    there = set(Run.objects.filter(run_id__in=runs.values()).values_list("run_id", "job_id")) if held else set()
    return {lease_ulid for lease_ulid, job in held.items() if (runs[lease_ulid], job) not in there}


def no_such_run() -> Invalid:
    return Invalid({"result.ingest_run_id": ["Ingest holds no such run of this job."]})
