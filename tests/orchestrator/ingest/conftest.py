"""A worker that holds a job, and the payload of its run, made from a recorded trace."""

import copy
from typing import Any

import pytest

from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.workers.traced import recorded, result, spec
from workers.engines.contract import MountPoints, NetworkRecord, ResourceUsage
from workers.report.report import RunReport


def metadata_of(job: Any, worker: Any) -> dict[str, Any]:
    return {
        "org_slug": job.org_slug,
        "project_slug": job.project_slug,
        "repo_url": job.repo_url,
        "git_commit": job.git_commit,
        "git_ref": job.git_ref,
        "pull_request_number": job.pull_request_number,
        "command": job.command_json,
        "working_directory": job.working_directory,
        "trigger_kind": job.trigger_kind,
        "trigger_actor": job.trigger_actor,
        "worker_id": worker.worker_id,
        "job_id": job.job_ulid,
        "retry_of_job_id": job.retry_of_job_ulid,
    }


def payload_for(job: Any, worker: Any, *, name: str = "hostile", **end: Any) -> dict[str, Any]:
    """Return the payload that our own worker would upload."""
    report = RunReport(MountPoints())
    report.feed(recorded(name))
    network = (
        NetworkRecord("packages.example.test", 443, "allowed", "203.0.113.9", 4_000, 2_500_000),
        NetworkRecord("evil.example.test", 443, "refused", reason="not allowed"),
    )
    peaks = ResourceUsage(memory_bytes=180 << 20, processes=9, disk_bytes=12 << 20, cpu_seconds=1.4)
    end = {"exit_code": 5, "network": network, "resources": peaks, "output_bytes": 5_200} | end
    return report.payload(metadata=metadata_of(job, worker), result=result(**end), spec=spec())


@pytest.fixture
def organization(db):
    found = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=found)
    return found


@pytest.fixture
def worker(db):
    return WorkerFactory()


@pytest.fixture
def wendy(worker) -> Caller:
    """The worker, as it calls."""
    return Caller(worker.token)


@pytest.fixture
def alice(organization) -> Caller:
    """A program of the organization."""
    return Caller(api_token(organization))


@pytest.fixture
def job(organization, worker):
    """Held by the worker."""
    submitted(organization.projects.get())
    return claimed(worker).job


@pytest.fixture
def payload(job, worker) -> dict[str, Any]:
    return copy.deepcopy(payload_for(job, worker))
