"""Bulk actions for tests, made by the operations."""

from typing import Any

from orchestrator.bulk_actions.execution import advance_bulk_action
from orchestrator.bulk_actions.models import BulkAction
from orchestrator.bulk_actions.operations import start_bulk_action
from orchestrator.bulk_actions.targets import store_targets
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident
from orchestrator.services import job_end
from runtime_jobs.models import Job, Organization, Project
from runtime_jobs.states import FailureReason
from tests.factories import ALICE, WorkerFactory, claimed, submitted


def start(organization: Organization, action: str = "cancel", **filters: Any) -> BulkAction:
    """A new bulk action; of jobs of the project `web` without a filter."""
    return start_bulk_action(
        organization=organization,
        action=action,
        filters=filters or {"project_slug": "web"},
        store_targets=store_targets,
        cause=Cause(ALICE, "cleanup"),
    )[0]


def finish(row: BulkAction) -> BulkAction:
    """Apply bulk actions until none is open, as one dispatcher does."""
    while advance_bulk_action() is not None:
        pass
    row.refresh_from_db()
    return row


def failed_job(project: Project) -> tuple[Job, Incident]:
    """A job that failed through no fault of its own, with its incident."""
    submitted(project)
    taken = claimed(worker := WorkerFactory())
    job = job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    return job, Incident.objects.get(job_ulid=job.job_ulid)
