"""The types of jobs: how each sets its policy, fills its columns and looks in a lease. The verbs know no type."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from runtime_jobs.models.jobs import Job
from runtime_jobs.policy import Policy

RUNTIME = "runtime"


@dataclass(frozen=True)
class RuntimeSpec:
    """One repository, one commit, one command, a traced run for ingest (document 000)."""

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

    job_type = RUNTIME

    @property
    def requirements(self) -> list[str]:
        """What a worker must offer. Document 000's example worker offers linux, and claims jobs with network."""
        return ["linux"] if self.allow_exec else ["linux", "exec_control"]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical execution request."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def columns(self) -> dict[str, Any]:
        return {
            "job_type": RUNTIME,
            "source_kind": "github",
            "repo_url": self.repo_url,
            "repo_owner": self.owner,
            "repo_name": self.repo,
            "git_ref": self.ref,
            "git_commit": self.git_commit,
            "pull_request_number": self.pull_request_number,
            "working_directory": self.working_directory,
            "command_json": list(self.command),
            "timeout_seconds": self.timeout_seconds,
            "allow_network": self.allow_network,
            "allow_exec": self.allow_exec,
            "requirements": self.requirements,
            "payload_digest": self.digest,
        }


def runtime_policy(
    *, lease_ttl_seconds: int, heartbeat_interval_seconds: int, acknowledge_within_seconds: int, max_requeues: int
) -> Policy:
    """A crash of the worker is retried once by itself; a result that ingest acknowledged beats a cancel."""
    return Policy(
        max_requeues=max_requeues,
        automatic_retries=1,
        needs_ingest=True,
        complete_beats_cancel=True,
        lease_ttl_seconds=lease_ttl_seconds,
        heartbeat_interval_seconds=heartbeat_interval_seconds,
        acknowledge_within_seconds=acknowledge_within_seconds,
    )


def source_of(job: Job) -> dict[str, Any]:
    """The `source` object of document 000, as a job and a lease show it."""
    return {
        "kind": job.source_kind,
        "repo_url": job.repo_url,
        "owner": job.repo_owner,
        "repo": job.repo_name,
        "ref": job.git_ref,
        "git_commit": job.git_commit,
        "pull_request_number": job.pull_request_number,
    }


def execution_of(job: Job) -> dict[str, Any]:
    """The `execution` object of document 000."""
    return {
        "working_directory": job.working_directory,
        "command": job.command_json,
        "timeout_seconds": job.timeout_seconds,
        "allow_network": job.allow_network,
        "allow_exec": job.allow_exec,
    }
