"""Takes a run: one for each job, the first one counts, nothing is ever overwritten."""

import hashlib
import json
import secrets
from dataclasses import dataclass
from typing import Any

from leases.models import Lease
from orchestrator.ingest.models import Run
from runtime_jobs.columns import ClockTimestamp
from runtime_jobs.errors import Invalid, LifecycleError, NotFound
from runtime_jobs.models import Job
from workers.models import Worker


class RunConflict(LifecycleError):
    """The job has a run already, and this one is not about the same command. Which run it is, is not said."""

    code = "run_conflict"


@dataclass(frozen=True)
class Stored:
    """`created` is false for a repeat; `matches` says whether the repeat had the bytes that were stored."""

    run: Run
    created: bool
    matches: bool


def digest_of(payload: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no blanks, UTF-8) without `payload_sha256`."""
    rest = {key: value for key, value in payload.items() if key != "payload_sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def store(payload: dict[str, Any], *, worker: Worker) -> Stored:
    """Keep the run of a job that this worker holds or held. Again, also at the same time: the same run comes back.

    Raises NotFound for a job that this worker never had, RunConflict, Invalid."""
    metadata, digest = payload["metadata"], digest_of(payload)
    job = _job_of(metadata["job_id"], worker)
    wrong = _differences(metadata, job)
    if wrong and Run.objects.filter(job_id=job.job_ulid).exists():
        raise RunConflict("Another run of this job was stored, for another command.")
    if wrong:
        raise Invalid({f"metadata.{name}": ["It is not the job's."] for name in wrong})
    if payload.get("payload_sha256", digest) != digest:
        raise Invalid({"payload_sha256": ["It is not the digest of this payload."]})
    return _insert_or_fetch(payload, digest, job, worker)


def _job_of(job_id: str, worker: Worker) -> Job:
    if not Lease.objects.filter(job_id=job_id, worker=worker).exists():
        raise NotFound("There is no such job for this worker.")
    return Job.objects.get(job_ulid=job_id)


def _differences(metadata: dict[str, Any], job: Job) -> list[str]:
    """The identity fields in which the payload is not about this job."""
    identity = {
        "org_slug": job.org_slug,
        "project_slug": job.project_slug,
        "repo_url": job.repo_url,
        "git_commit": job.git_commit,
        "command": job.command_json,
        "trigger_kind": job.trigger_kind,
    }
    return [name for name, value in identity.items() if metadata[name] != value]


def _insert_or_fetch(payload: dict[str, Any], digest: str, job: Job, worker: Worker) -> Stored:
    """One statement decides among posts at the same time: the unique key on the job."""
    at = Job.objects.values_list(ClockTimestamp()).get(pk=job.pk)[0]
    row = Run(
        run_id=f"run_{at:%Y%m%d%H%M%S}_{secrets.token_hex(6)}",
        job_id=job.job_ulid,
        org_slug=job.org_slug,
        project_slug=job.project_slug,
        worker_id=worker.worker_id,
        payload=payload,
        payload_sha256=digest,
        received_at=at,
    )
    Run.objects.bulk_create([row], ignore_conflicts=True)
    stored = Run.objects.get(job_id=job.job_ulid)
    return Stored(stored, created=stored.run_id == row.run_id, matches=stored.payload_sha256 == digest)
