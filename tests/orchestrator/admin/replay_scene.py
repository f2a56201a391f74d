"""Replays with each verdict, and one that has not ended, made by the operations."""

from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence import replays
from orchestrator.evidence.replay_models import Replay
from orchestrator.evidence.replay_tasks import compare_ended_replays
from orchestrator.evidence.replays import ReplayRequest
from orchestrator.services import job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from tests.factories import OPERATOR, OrganizationFactory, PoolFactory, ProjectFactory, WorkerFactory, claimed
from tests.factories import submitted_steps as submit
from workers.models import Worker

AUDITOR = Actor("client", "token auditor")
REPORT = {"type": "file", "path": "dist/report.json", "size_bytes": 5_120, "sha256": "9c8de5ca" * 8, "stored": True}
LOG = b"building the report of %d findings\n"


def replays_of_an_audit() -> dict[str, Replay]:
    """Return the replays by verdict; the one without a verdict is `pending`."""
    organization = OrganizationFactory(slug="acme-labs")
    project = ProjectFactory(organization=organization, slug="reports", pool=PoolFactory(slug="audit").slug)
    worker = WorkerFactory(slug="auditor-1", pool=PoolFactory(slug="audit"))
    found = {}
    for name, spec in (("match", {}), ("diverged", {}), ("unverifiable", {"allow_network": True}), ("pending", {})):
        submit(project, name=f"report-{name}", steps=("make report",), **spec)
        job = _execute(worker, REPORT)
        actor = OPERATOR if name == "diverged" else AUDITOR
        sealed = name != "unverifiable"
        again = replays.replay(ReplayRequest(job.job_ulid, "audit of the third quarter", actor, is_sealed=sealed)).job
        if name != "pending":
            _execute(worker, REPORT | ({"sha256": "1f0d6b2b" * 8} if name == "diverged" else {}), findings=4)
        compare_ended_replays(RowRunner())
        found[name] = Replay.objects.get(job_ulid=again.job_ulid)
    return found


def _execute(worker: Worker, artifact: dict, findings: int = 3) -> Job:
    lease = claimed(worker, job_types=("steps",)).lease.lease_ulid
    job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=0, chunk=LOG % findings)
    result = {"files": [artifact], "steps": [{"index": 0, "exit_code": 0}], "environment": {"engine": "bubblewrap"}}
    return job_end.complete(lease_ulid=lease, worker=worker, exit_code=0, result=result)
