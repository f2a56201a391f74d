"""Runners, hardware specs and orders for tests of the agent endpoints."""

import secrets
import string
from typing import Any
from uuid import UUID

from django.conf import settings

from orchestrator.protocols.bencher.channel.claims import claim_for_runner
from orchestrator.protocols.bencher.channel.operations import leased_job, renew_leases
from orchestrator.protocols.bencher.channel.session import LeasedJob, Reply
from orchestrator.services.submission import submit
from runtime_jobs.models import Job, Project
from runtime_jobs.specs import configured_policy
from runtime_jobs.specs.oci import OciSpec
from tests.factories import ALICE, PoolFactory, ProjectFactory, WorkerFactory, submission
from workers.models import HardwareSpec, Worker, WorkerSpec

GIBIBYTE = 1 << 30
REPOSITORY = UUID("0190a5d4-9d3c-7bbb-8f00-00000000aaaa")  # of the images of all orders


def new_spec(slug: str = "small", **changes: Any) -> HardwareSpec:
    """A hardware spec without sandbox."""
    values = {"name": slug, "slug": slug, "os": "linux", "architecture": "x86_64", "cpu": 2}
    return HardwareSpec.objects.create(**values | {"memory": 4 * GIBIBYTE, "disk": 10 * GIBIBYTE} | changes)


def new_runner(*specs: HardwareSpec, slug: str = "rack-7") -> Worker:
    """A runner that provides the specs. `runner.token` is its key."""
    letters = string.ascii_letters + string.digits
    key = "bencher_runner_" + "".join(secrets.choice(letters) for _ in range(30))
    pool = PoolFactory(slug=settings.RUNNER_POOL)
    runner = WorkerFactory(slug=slug, pool=pool, token=key, capacity=256)
    WorkerSpec.objects.bulk_create([WorkerSpec(worker=runner, spec=spec) for spec in specs])
    return runner


def order(spec: HardwareSpec, *, timeout: int = 300, owner: Project | None = None, **changes: Any) -> Job:
    """A queued job of type `oci`, of a new project by default."""
    values = {
        "hardware_spec": str(spec.uuid),
        "least_isolation": spec.least_isolation,
        "registry": "http://localhost:8000/",
        "project": str(owner.uuid if owner else REPOSITORY),
        "image_digest": "sha256:" + "0" * 64,
        "timeout_seconds": timeout,
    }
    given = submission(owner or ProjectFactory(), OciSpec(**values | changes), pool=settings.RUNNER_POOL)
    policy = configured_policy("oci")
    return submit(given, policy=policy, default_pool=settings.RUNNER_POOL, actor=ALICE).job


def held_by(runner: Worker) -> LeasedJob:
    """The next job of the runner, which holds it now."""
    found = claim_for_runner(runner)
    assert found.claimed is not None
    return leased_job(found.claimed.lease, runner)


def mark_running(job: LeasedJob) -> Reply:
    """The reply to `running`."""
    lease_ulid = job.handle.lease_ulid
    return renew_leases([job], {lease_ulid})[lease_ulid]


def row(job: Job | LeasedJob) -> Job:
    """The row of a job as it is now."""
    job_ulid = job.handle.job_ulid if isinstance(job, LeasedJob) else job.job_ulid
    return Job.objects.get(job_ulid=job_ulid)
