"""Creates runners, hardware specs, and jobs for runners with their reports: the rows of the scenario `channels`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.utils import timezone

from benchmarks import tenants
from orchestrator.results.models import Branch, Report, Testbed
from orchestrator.services import submission as service_submission
from runtime_jobs.models import Job, Project
from runtime_jobs.specs import configured_policy
from runtime_jobs.specs.oci import OCI, OciSpec
from tests.factories import ALICE, HardwareSpecFactory, RunnerFactory, submission
from workers.models import HardwareSpec, Worker

DIGEST = "sha256:" + "0123456789abcdef" * 4
MOST_CHANNELS = 250  # executions of one runner


@dataclass
class RunnerTenant:
    """Represents a project whose jobs wait for runners."""

    project: Project = field(default_factory=lambda: tenants.project("bench", settings.RUNNER_POOL))

    def __post_init__(self) -> None:
        self.branch = Branch.objects.create(project=self.project, name="main", slug="main")
        self.testbed = Testbed.objects.create(project=self.project, name="bench", slug="bench")

    def submit(self, spec: HardwareSpec) -> Job:
        """Submit one job with its report, as a run does."""
        order = OciSpec(
            hardware_spec=str(spec.uuid),
            least_isolation=spec.least_isolation,
            registry=settings.PUBLIC_URL,
            project=str(self.project.uuid),
            image_digest=DIGEST,
            timeout_seconds=600,
        )
        job = service_submission.submit(
            submission(self.project, order, pool=settings.RUNNER_POOL),
            policy=configured_policy(OCI),
            default_pool=settings.RUNNER_POOL,
            actor=ALICE,
        ).job
        self._report([job.job_ulid], spec)
        return job

    def fill(self, spec: HardwareSpec, jobs: int) -> None:
        """Let so many jobs wait: one by the operation, the others as its copies; each has a report."""
        tenants.number_jobs()
        first = self.submit(spec)
        if jobs > 1:
            tenants.copy(first, jobs - 1, events=True)
        copies = Job.objects.filter(requirements=first.requirements, report__isnull=True)
        self._report(list(copies.values_list("job_ulid", flat=True)), spec)

    def _report(self, jobs: list[str], spec: HardwareSpec) -> None:
        now = timezone.now()
        common: dict[str, Any] = {"branch": self.branch, "testbed": self.testbed, "spec": spec, "adapter": "json"}
        Report.objects.bulk_create(
            Report(project=self.project, job_id=job, start_time=now, end_time=now, **common) for job in jobs
        )


def new_spec(number: int) -> HardwareSpec:
    """Create a hardware spec without sandbox."""
    spec: HardwareSpec = HardwareSpecFactory(slug=f"spec-{number}")
    return spec


def hired(number: int, specs: list[HardwareSpec]) -> list[Worker]:
    """Create so many runners with these specs; `token` of each is its key."""
    return [hired_as(f"rack-{place}", specs) for place in range(number)]


def hired_as(slug: str, specs: list[HardwareSpec]) -> Worker:
    """Create a runner with these specs."""
    runner: Worker = RunnerFactory(slug=slug, specs=specs)
    return runner


def channel_path(runner: Worker) -> str:
    """Return the path of a runner's channel."""
    return f"/v0/runners/{runner.slug}/channel"
