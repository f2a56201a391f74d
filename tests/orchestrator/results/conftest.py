"""Jobs of runners whose result has arrived, and their reports."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from orchestrator.results import models, names
from orchestrator.results.processing import store_output
from orchestrator.services import claiming, heartbeat, job_end
from orchestrator.services.submission import submit
from runtime_jobs.models import Job, Project
from runtime_jobs.specs import OCI, OciSpec, configured_policy, spec_label
from tests.factories import ALICE, PoolFactory, ProjectFactory, WorkerFactory, offer, submission

DIGEST = "sha256:" + "0" * 64
CONFIG_PROJECT = UUID(int=7)  # of the job's configuration, which may be another project or none
HARDWARE_SPEC = "019a2b1c-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def store(tmp_path, settings):
    """A store of the test's own."""
    location = tmp_path / "outputs"
    backend = "orchestrator.core.durable_files.DurableFileStorage"
    settings.STORAGES = settings.STORAGES | {"outputs": {"BACKEND": backend, "OPTIONS": {"location": location}}}
    return location


@dataclass
class Execution:
    """A job of a runner with its report, executing since `started`."""

    job: Job
    report: models.Report
    lease: Any
    started: datetime
    result: dict[str, str] | None = None  # names the output

    def store(self, body: bytes) -> dict[str, str] | None:
        """Store an output of the job, whether its result has arrived or not."""
        self.result = store_output(self.job, body)
        Job.objects.filter(pk=self.job.pk).update(result=self.result)
        self.job.result = self.result
        return self.result

    def complete(self, seconds: float = 60) -> Job:
        """The job after its result has arrived, so many seconds after the start."""
        now = self.started + timedelta(seconds=seconds)
        job_end.complete(
            lease_ulid=self.lease.lease_ulid, worker=self.lease.worker, exit_code=0, result=self.result, now=now
        )
        return self.fresh()

    def fresh(self) -> Job:
        self.job = Job.objects.get(pk=self.job.pk)
        return self.job

    def outcome(self) -> models.ReportResult:
        return models.ReportResult.objects.get(report=self.report)

    def metrics(self) -> list[tuple[int, str, str, float]]:
        rows = models.Metric.objects.filter(report=self.report).order_by(
            "iteration", "benchmark__name", "measure__name"
        )
        return list(rows.values_list("iteration", "benchmark__name", "measure__name", "value"))


def execution(project: Project | None = None, *, adapter: str = "json", **config: Any) -> Execution:
    """A job that executes since an hour. `config`: members of its configuration."""
    project = project or ProjectFactory()
    pool = PoolFactory(slug="bare-metal", least_isolation="none")
    started = timezone.now() - timedelta(hours=1)
    wanted = OciSpec(
        hardware_spec=HARDWARE_SPEC, least_isolation="none", registry="http://localhost:8000/",
        project=str(CONFIG_PROJECT), image_digest=DIGEST, timeout_seconds=900, **config,
    )  # fmt: skip
    outcome = submit(
        submission(project, wanted),
        policy=configured_policy(OCI),
        default_pool="shared-linux",
        actor=ALICE,
        now=started,
    )
    report = models.Report.objects.create(
        project=project,
        job=outcome.job,
        branch=names.get_or_create_branch(project, "main"),
        testbed=names.get_or_create_testbed(project, "localhost"),
        adapter=adapter,
        start_time=started,
        end_time=started,
    )
    worker = WorkerFactory(pool=pool)
    offered = offer(worker, job_types=(OCI,), offers=frozenset({spec_label(HARDWARE_SPEC)}), isolation="none")
    claim = claiming.claim(worker=worker, offer=offered, now=started)
    assert claim is not None
    heartbeat.report(lease_ulid=claim.lease.lease_ulid, worker=worker, phase="executing", now=started)
    return Execution(outcome.job, report, claim.lease, started)
