"""Workflow runs for tests: repositories, runs of a text, and what runners do with their jobs."""

import itertools
from typing import Any

from orchestrator.services import cancellation, claiming, job_end
from orchestrator.workflows import runs
from orchestrator.workflows.runs import WorkflowRunRequest
from runtime_jobs.models import Job, Project, Repository, WorkflowEvent, WorkflowRun
from runtime_jobs.states import FailureReason
from runtime_jobs.workflows.parsing import parse_workflow
from tests.factories import ALICE, COMMIT, ProjectFactory, WorkerFactory, offer

LABEL = "linux"
FILE = ".shithub/workflows/ci.yml"
_numbers = itertools.count(1)


def repository(project: Project | None = None, name: str = "demo", **columns: Any) -> Repository:
    """A repository without a mirror."""
    project = project or Project.objects.order_by("pk").first() or ProjectFactory()
    values = {"owner": "alice", "origin": "https://github.com/alice/demo"}
    return Repository.objects.get_or_create(project=project, name=name, defaults=values | columns)[0]


def workflow_text(jobs: dict[str, dict[str, Any] | None], *, on: str = "push", **top: str) -> str:
    """A workflow file. The keys of a job have '_' for '-'; a job without steps has one."""
    lines = [f"on: {on}", *(f"{key}: {value}" for key, value in top.items()), "jobs:"]
    for key, members in jobs.items():
        found = {"runs_on": LABEL, "steps": "[run: echo]"} | (members or {})
        lines += [f"  {key}:", *(f"    {name.replace('_', '-')}: {value}" for name, value in found.items())]
    return "\n".join(lines) + "\n"


def parsed(text: str) -> Any:
    found = parse_workflow(text.encode())
    assert found.workflow is not None, [str(diagnostic) for diagnostic in found.diagnostics]
    return found.workflow


def request(text: str, of: Repository | None = None, **changes: Any) -> WorkflowRunRequest:
    values = {
        "repository_id": (of or repository()).pk, "workflow_file": FILE, "workflow": parsed(text), "head_sha": COMMIT,
        "head_ref": "refs/heads/main", "event": WorkflowEvent.PUSH, "event_payload": {"ref": "refs/heads/main"},
        "trigger_id": f"push:{next(_numbers)}", "actor_name": "alice", "correlation_id": "test",
    }  # fmt: skip
    return WorkflowRunRequest(**values | changes)


def started(jobs: dict[str, dict[str, Any] | None] | str, of: Repository | None = None, **changes: Any) -> WorkflowRun:
    """A new run of these jobs. `top`: further keys of the file."""
    top = changes.pop("top", {})
    text = jobs if isinstance(jobs, str) else workflow_text(jobs, **top)
    asked = request(text, of, **changes)
    return runs.start_workflow_run(asked, default_pool="shared-linux", actor=ALICE).run


def job_of(run: WorkflowRun, key: str) -> Job:
    return Job.objects.get(batch_id=run.batch_id, spec__job_key=key)


def states(run: WorkflowRun) -> dict[str, str]:
    """The states of the jobs by key; a canceled one with its reason."""
    jobs = {job.spec["job_key"]: job for job in Job.objects.filter(batch_id=run.batch_id)}
    return {
        key: f"canceled:{jobs[key].cancel_reason}" if jobs[key].state == "canceled" else str(jobs[key].state)
        for key in run.job_keys
        if key in jobs
    }


class Runner:
    """A worker that executes workflow jobs."""

    def __init__(self, **columns: Any) -> None:
        self.worker = WorkerFactory(**columns)
        self.claimed: dict[str, list[str]] = {}  # leases by the key of the job

    def claim(self) -> Job | None:
        """The next job, begun."""
        offered = offer(self.worker, job_types=("actions",), offers=frozenset({LABEL}))
        found = claiming.claim(worker=self.worker, offer=offered)
        if found is None:
            return None
        self.claimed.setdefault(found.job.spec["job_key"], []).append(found.lease.lease_ulid)
        return found.job

    def claim_all(self) -> list[str]:
        """The keys of all jobs that can be claimed, in order."""
        return [job.spec["job_key"] for job in iter(self.claim, None)]

    def end(self, key: str, conclusion: str = "success") -> Job:
        lease = self.claimed[key].pop(0)
        result = {"status": "completed", "conclusion": conclusion}
        if conclusion in {"success", "neutral", "skipped"}:
            return job_end.complete(lease_ulid=lease, worker=self.worker, result=result)
        if conclusion == "cancelled":
            return cancellation.stop_by_worker(lease_ulid=lease, worker=self.worker)
        reason = FailureReason.TIMED_OUT if conclusion == "timed_out" else FailureReason.COMMAND_FAILED
        return job_end.fail(lease_ulid=lease, worker=self.worker, reason=reason, message="", result=result)

    def run_all(self, **conclusions: str) -> list[str]:
        """Claim and end jobs until there is none. Returns their keys in order."""
        order = []
        while keys := self.claim_all():
            for key in keys:
                self.end(key, conclusions.get(key, "success"))
            order += keys
        return order


def reread(run: WorkflowRun) -> WorkflowRun:
    return WorkflowRun.objects.select_related("batch", "repository__project__organization").get(pk=run.pk)
