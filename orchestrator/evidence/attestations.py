"""Attestations of ended jobs: SLSA provenance v1 on the artifacts of a job, else on its result, in a signed envelope.

The statement follows from the rows of the job alone. While its artifacts are stored, the same job and the same key give
the same attestation.
"""

import hashlib
from typing import Any, Final

from django.conf import settings
from django.db.models import Q

from leases.models import Lease
from orchestrator.core.datetimes import format_timestamp
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.signing_keys import sign
from runtime_jobs.errors import NotFinal
from runtime_jobs.events import canonical_result
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.orchestration_status import STATUS_OF_STATE
from runtime_jobs.specs import JOB_TYPES

PROVENANCE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:runtime-orchestrator:job:v1"
RESULT: Final = "result"  # the name of the subject of a job without artifacts


def attestation_of(job: Job) -> dict[str, Any]:
    """Return the signed attestation of an attempt that has ended.

    Raises:
        NotFinal: The job has not ended.
        SigningKeyError: This machine has no private key that may sign.
    """
    if not job.is_final:
        raise NotFinal("The job has not ended. Only a job that has ended has an attestation.")
    return sign(form.STATEMENT_TYPE, form.canonical(provenance_of(job)))


def provenance_of(job: Job) -> dict[str, Any]:
    """Return the statement about an ended attempt: what came out, of which input, by which worker, when."""
    lease = Lease.objects.filter(job_id=job.job_ulid).order_by("-fence").first()
    return {
        "_type": form.STATEMENT,
        "subject": _subjects(job),
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _request(job),
                "internalParameters": _circumstances(job),
                "resolvedDependencies": _inputs(job),
            },
            "runDetails": {
                "builder": {"id": f"{settings.PUBLIC_URL}/workers/{lease.worker_id if lease else 'none'}"},
                "metadata": {
                    "invocationId": str(uuid_of(job.job_ulid)),
                    "startedOn": format_timestamp(job.started_at),
                    "finishedOn": format_timestamp(job.finished_at),
                },
                "byproducts": [{"name": "event-history", "digest": {"sha256": job.event_head}}],
            },
        },
    }


def _subjects(job: Job) -> list[dict[str, Any]]:
    """Return the complete artifacts whose bytes passed through the server; without any, the result."""
    artifacts = StoredArtifact.objects.filter(~Q(sha256=None), ~Q(completed_at=None), job=job, is_abandoned=False)
    named = list(artifacts.order_by("name").values_list("name", "sha256"))
    named = named or [(RESULT, hashlib.sha256(canonical_result(job)).hexdigest())]
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in named]


def _request(job: Job) -> dict[str, Any]:
    kind = JOB_TYPES[job.job_type]
    request = job.spec["payload"] if kind.has_payload else kind.serialize(job)
    cursors = job.spec["cursors"] if kind.has_payload else {}
    return {"jobType": job.job_type, "payload": request, "cursors": cursors, "timeoutSeconds": job.timeout_seconds}


def _circumstances(job: Job) -> dict[str, Any]:
    return {
        "tenant": job.org_slug,
        "project": job.project_slug,
        "jobId": str(uuid_of(job.root_job_ulid)),
        "attempt": job.attempt,
        "replayOf": None if job.replay_of_job_ulid is None else str(uuid_of(job.replay_of_job_ulid)),
        "status": str(STATUS_OF_STATE[job.state]),
        "exitCode": job.exit_code,
        "failureReason": job.failure_reason,
        "environment": (job.result or {}).get("environment"),
    }


def _inputs(job: Job) -> list[dict[str, Any]]:
    inputs: list[dict[str, Any]] = [{"name": "request", "digest": {"sha256": job.payload_digest}}]
    if job.repo_url is not None and job.git_commit is not None:
        inputs.append({"uri": f"git+{job.repo_url}", "digest": {"gitCommit": job.git_commit}})
    return inputs
