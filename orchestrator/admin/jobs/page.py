"""Everything that a job's page shows: summary, specification, attempts, leases, timeline, log."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from leases.models import Lease
from orchestrator.admin import formatting
from orchestrator.admin.jobs.artifacts import JobArtifacts, artifacts_of
from orchestrator.admin.jobs.dependencies import JobDependencies, dependencies_of
from orchestrator.admin.jobs.lease_rows import LeaseTableRow, lease_row
from orchestrator.admin.jobs.log import LogPage, tail
from orchestrator.admin.jobs.steps import StepTableRow, step_rows
from orchestrator.admin.jobs.summary import JobSummary, summarize
from orchestrator.admin.jobs.timeline import TimelineEntry, timeline_of
from orchestrator.admin.labels import JobBadge, job_badge
from orchestrator.results.models import Report
from orchestrator.results.outputs import output_name, output_path
from runtime_jobs.models import Batch, Job, UsageRecord
from runtime_jobs.specs.oci import OCI, config_of, is_spec_label, spec_uuid_of
from workers.models import HardwareSpec

MAX_ATTEMPTS = 50
MAX_LEASES = 50
MAX_STEP_LENGTH = 300


@dataclass(frozen=True)
class AttemptRow:
    """An attempt of the job. `cause`: why it was created."""

    job: Job
    badge: JobBadge
    failure_reason: str
    cause: str


@dataclass(frozen=True)
class JobPage:
    """Context of the template."""

    summary: JobSummary
    specification: list[tuple[str, Any]]
    attempts: list[AttemptRow]
    leases: list[LeaseTableRow]
    timeline: list[TimelineEntry]
    log: LogPage
    dependencies: JobDependencies
    artifacts: JobArtifacts | None
    steps: list[StepTableRow]


def job_page(job: Job, *, now: datetime) -> JobPage:
    """Read everything that a job's page shows."""
    leases = Lease.objects.filter(job=job).select_related("worker").order_by("-fence")
    lease_rows = [lease_row(lease, now) for lease in leases[:MAX_LEASES]]
    worker_names = {row.worker.worker_id: row.worker.slug for row in lease_rows}
    attempts = list(Job.objects.filter(root_job_ulid=job.root_job_ulid).order_by("-attempt")[:MAX_ATTEMPTS])
    open_lease = lease_rows[0] if lease_rows and lease_rows[0].is_open else None
    return JobPage(
        summary=summarize(job, attempts=attempts, lease=open_lease, now=now),
        specification=_specification(job),
        attempts=[_attempt_row(attempt) for attempt in attempts],
        leases=lease_rows,
        timeline=timeline_of(job, worker_names),
        log=tail(job),
        dependencies=dependencies_of(job),
        artifacts=artifacts_of(job),
        steps=step_rows(job),
    )


def _attempt_row(attempt: Job) -> AttemptRow:
    cause = f"{formatting.humanize(attempt.retry_kind)} retry" if attempt.retry_kind else "submitted"
    return AttemptRow(attempt, job_badge(attempt), formatting.humanize(attempt.failure_reason), cause)


def _specification(job: Job) -> list[tuple[str, Any]]:
    """Return the fields of the request. Leaves out empty ones, and the values of environment variables."""
    yes_no = {True: "yes", False: "no", None: None}
    fields = [
        ("Job type", job.job_type),
        ("Organization", f"{job.org_slug}/{job.project_slug}"),
        ("Repository", formatting.repository_of(job) if job.repo_name else None),
        ("Commit", formatting.code(job.git_commit) if job.git_commit else None),
        ("Ref", job.git_ref),
        ("Pull request", f"#{job.pull_request_number}" if job.pull_request_number else None),
        ("Command", formatting.code(job.command_line) if job.command_json else None),
        ("Name", job.spec.get("name")),
        ("Steps", _steps(job.spec.get("steps", ()))),
        ("Depends on", ", ".join(job.spec.get("needs", ()))),
        # Names only: values may be secrets.
        ("Environment", ", ".join(sorted(job.spec.get("environment") or job.spec.get("env") or ()))),
        ("Image", job.spec.get("image")),
        *_benchmark_fields(job),
        ("Working directory", job.working_directory),
        ("Timeout", formatting.format_duration(job.timeout_seconds) if job.timeout_seconds else None),
        ("Allow network", yes_no[job.allow_network]),
        ("Allow exec", yes_no[job.allow_exec]),
        ("Trigger", " by ".join(filter(None, (formatting.humanize(job.trigger_kind), job.trigger_actor)))),
        ("Source IP", job.source_address),
        ("Pool", job.pool),
        ("Priority", str(job.priority)),
        ("Minimum isolation", job.least_isolation),
        ("Trace", job.trace),
        ("Required capabilities", ", ".join(name for name in job.requirements if not is_spec_label(name))),
        ("Concurrency group", job.concurrency_key),
        ("Batch", _batch_link(job)),
        ("Replay of", _job_link(job.replay_of_job_ulid)),
        ("Correlation id", formatting.code(job.correlation_id)),
    ]
    return [(label, value) for label, value in fields if value]


def _benchmark_fields(job: Job) -> list[tuple[str, Any]]:
    """Return the fields of a job of type `oci`: what its runner receives, and what happens to its result."""
    if job.job_type != OCI:
        return []
    config = config_of(job)
    command = " ".join(map(shlex.quote, [*config.get("entrypoint", ()), *config.get("cmd", ())]))
    report = Report.objects.filter(job_id=job.job_ulid).first()
    output = output_name(job)
    return [
        ("Image", config.get("image")),
        ("Image digest", formatting.code(config["digest"]) if "digest" in config else None),
        ("Command", formatting.code(command) if command else None),
        ("Environment", ", ".join(sorted(config.get("env", ())))),  # names only, as above
        ("Hardware spec", _spec_link(job)),
        ("Iterations", str(config.get("iter", 1))),
        ("Files", ", ".join(config.get("file_paths", ()))),
        ("Report", formatting.link(formatting.change_url(Report, report.pk), "Show report") if report else "none"),
        ("Stored output", formatting.code(output_path(config["project"], output)) if output else None),
        ("Billed minutes", _billed_minutes(job)),
    ]


def _spec_link(job: Job) -> SafeString:
    spec = HardwareSpec.objects.filter(uuid=spec_uuid_of(job)).first()
    if spec is None:
        return formatting.code(spec_uuid_of(job))
    return formatting.link(formatting.change_url(HardwareSpec, spec.pk), spec.slug)


def _billed_minutes(job: Job) -> SafeString | str:
    minutes = job.last_billed_minute or 0
    if not minutes:
        return "none yet" if job.finished_at is None else "none"
    return formatting.link(formatting.changelist_url(UsageRecord, job_ulid=job.job_ulid), f"{minutes:,}")


def _steps(steps: Sequence[str | dict[str, Any]]) -> SafeString:
    """Format one step per line, numbered as in the result. Those of a workflow job have members."""
    texts = (step if isinstance(step, str) else step.get("run") or step.get("uses") or "" for step in steps)
    rows = ((number, formatting.code(text[:MAX_STEP_LENGTH])) for number, text in enumerate(texts))
    return format_html_join("", "<div>{}: {}</div>", rows)


def _job_link(job_ulid: str | None) -> SafeString | None:
    return formatting.link(formatting.change_url(Job, job_ulid), formatting.code(job_ulid)) if job_ulid else None


def _batch_link(job: Job) -> SafeString | None:
    if job.batch is None:
        return None
    return formatting.link(formatting.change_url(Batch, job.batch.batch_ulid), formatting.code(job.batch.batch_ulid))
