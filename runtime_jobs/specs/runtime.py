"""Type `runtime`: one repository, one commit, one command, a traced run for ingest (document 000)."""

from dataclasses import dataclass
from typing import Any

from runtime_jobs.models.jobs import Job
from runtime_jobs.specs.source import RepositorySource, digest_of, source_of

RUNTIME = "runtime"


@dataclass(frozen=True)
class RuntimeSpec:
    """Document 000's `source` and `execution`."""

    repo_url: str
    owner: str
    repo: str
    ref: str | None
    git_commit: str
    pull_request_number: int | None
    working_directory: str
    command: tuple[str, ...]
    timeout_seconds: int
    allow_network: bool
    allow_exec: bool
    trace: str | None = None

    job_type = RUNTIME
    least_isolation = None

    @property
    def source(self) -> RepositorySource:
        return RepositorySource(
            self.repo_url, self.owner, self.repo, self.ref, self.git_commit, self.pull_request_number
        )

    @property
    def requirements(self) -> list[str]:
        """The capabilities that a worker must offer. The worker of document 000 offers linux only."""
        return ["linux"] if self.allow_exec else ["linux", "exec_control"]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical execution request."""
        return digest_of(vars(self))

    def columns(self) -> dict[str, Any]:
        return {
            "job_type": RUNTIME,
            **self.source.columns(),
            "working_directory": self.working_directory,
            "command_json": list(self.command),
            "timeout_seconds": self.timeout_seconds,
            "allow_network": self.allow_network,
            "allow_exec": self.allow_exec,
            "spec": {} if self.trace is None else {"trace": self.trace},
            "requirements": self.requirements,
            "payload_digest": self.digest,
        }


def execution_of(job: Job) -> dict[str, Any]:
    """The `execution` object of document 000."""
    return {
        "working_directory": job.working_directory,
        "command": job.command_json,
        "timeout_seconds": job.timeout_seconds,
        "allow_network": job.allow_network,
        "allow_exec": job.allow_exec,
        "trace": job.spec.get("trace"),
    }


def runtime_from_job(job: Job) -> RuntimeSpec:
    """Return the specification that the columns of a job contain."""
    execution = execution_of(job) | {"command": tuple(job.command_json or ())}
    return RuntimeSpec(**vars(RepositorySource.of(job)), **execution)


def serialize_runtime(job: Job) -> dict[str, Any]:
    """Return the specification as it was submitted."""
    return {"source": source_of(job), "execution": execution_of(job)}


def serialize_runtime_for_lease(job: Job, confined: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a lease. `confined`: minimum isolation, egress and trace."""
    return {"source": source_of(job), "execution": execution_of(job) | confined}
