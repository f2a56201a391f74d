"""Builds the response to a claim (contract 2.1)."""

from typing import Any
from urllib.parse import quote

from django.conf import settings

from orchestrator.job_tokens.claims import sign
from orchestrator.protocols.shithub.heartbeat.operation import ClaimedJob
from orchestrator.protocols.shithub.wire import format_seconds
from orchestrator.workflows.claims import PreparedStep
from runtime_jobs.models import JobStep, Repository


def claim_document(claimed: ClaimedJob) -> dict[str, Any]:
    """Return the response to a heartbeat that has claimed a job."""
    token = claimed.api_token
    return {"token": sign(token), "expires_at": format_seconds(token.expires_at), "job": _job(claimed)}


def checkout_url(repository: Repository) -> str:
    """Return the address of a repository for git."""
    return f"{settings.PUBLIC_URL.rstrip('/')}/{quote(repository.owner, safe='')}/{quote(repository.name, safe='')}.git"


def _job(claimed: ClaimedJob) -> dict[str, Any]:
    job, run, values = claimed.job, claimed.run, claimed.values
    spec = job.spec
    return {
        "id": job.pk,
        "run_id": run.pk,
        "repo_id": run.repository_id,
        "run_index": run.run_index,
        "workflow_file": run.workflow_file,
        "workflow_name": run.workflow_name,
        "checkout_url": checkout_url(run.repository),
        "checkout_token": sign(claimed.checkout_token),
        "head_sha": run.head_sha,
        "head_ref": run.head_ref,
        "event": run.event,
        "event_payload": run.event_payload if isinstance(run.event_payload, dict) else {},
        "job_key": spec["job_key"],
        "job_name": spec["job_name"],
        "runs_on": spec["runs_on"],
        "needs": spec["needs"],
        "if": spec["condition"],
        "timeout_minutes": spec["timeout_minutes"],
        "permissions": spec["permissions"],
        "secrets": values.secrets or None,
        "mask_values": values.masks or None,
        "env": claimed.prepared.env,
        "variables": values.variables or None,
        "environment": "",
        "environment_url": "",
        "steps": [
            _step(step, claimed.prepared.steps[step.pk])
            for step in claimed.steps
            if step.pk not in claimed.prepared.skipped
        ],
    }


def _step(step: JobStep, prepared: PreparedStep) -> dict[str, Any]:
    return {
        "id": step.pk,
        "index": step.index,
        "step_id": step.step_id,
        "name": step.name,
        "if": step.condition,
        "run": prepared.run,
        "uses": step.uses,
        "working_directory": prepared.working_directory,
        "env": prepared.env,
        "with": prepared.with_values,
        "continue_on_error": step.continue_on_error,
    }
