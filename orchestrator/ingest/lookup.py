"""Does ingest really hold the run that a worker says it uploaded?"""

from leases.models import Lease
from orchestrator.ingest.models import Run
from runtime_jobs.errors import Invalid
from workers.models import Worker


def require_run(*, run_id: str, lease_ulid: str, worker: Worker) -> None:
    """Raise Invalid unless the reference ingest holds this run for the job of this lease.

    Asked before the job's transaction. A lease that does not count is left to the fence to refuse."""
    held = Lease.objects.open().filter(lease_ulid=lease_ulid, worker=worker).values_list("job_id", flat=True).first()
    if held is not None and not Run.objects.filter(run_id=run_id, job_id=held).exists():
        raise Invalid({"result.ingest_run_id": ["Ingest holds no such run of this job."]})
