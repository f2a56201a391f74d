"""Provides the tests of chains with ended jobs, operator events, and tasks that have caught up."""

from datetime import datetime
from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.evidence.chain_models import Checkpoint
from orchestrator.evidence.checkpoints import write_checkpoints
from orchestrator.evidence.operator_chains import link_operator_events
from orchestrator.services import job_end
from runtime_jobs.models import Job, OperatorEvent, Organization, Project
from tests.factories import OPERATOR, OrganizationFactory, ProjectFactory, WorkerFactory, claimed, submitted
from tests.older_transactions import wait_for_older_transactions


def project_of(slug: str) -> Project:
    """Return a project of the organization with this slug, which is created if it does not exist."""
    organization = Organization.objects.filter(slug=slug).first() or OrganizationFactory(slug=slug)
    return Project.objects.filter(organization=organization).first() or ProjectFactory(organization=organization)


def ended_job(slug: str = "acme", **result: Any) -> Job:
    """Return a job of the organization that a worker has failed."""
    job = submitted(project_of(slug))
    lease = claimed(WorkerFactory()).lease
    job_end.fail(
        lease_ulid=lease.lease_ulid,
        worker=lease.worker,
        reason="command_failed",
        exit_code=3,
        result=result or {"n": 1},
    )
    return Job.objects.get(pk=job.pk)


def operator_event(
    slug: str | None = "acme", *, reason: str = "", now: datetime | None = None, **facts: Any
) -> OperatorEvent:
    """Return an operator event of the organization."""
    return record_operator_event(
        "limit.set", target="a limit", cause=Cause(OPERATOR, reason, now=now), org_slug=slug, **facts
    )


def checkpoints() -> list[Checkpoint]:
    """Let both tasks catch up. Returns the new checkpoints."""
    wait_for_older_transactions()
    while link_operator_events():
        pass
    written, is_complete = write_checkpoints()
    assert is_complete
    return written
