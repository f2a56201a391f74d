"""Everything about one job: how it stands in words, its attempts, its leases, its trail."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from leases.models import Lease
from orchestrator.admin import formatting
from orchestrator.admin.jobs import log as jobs_log
from orchestrator.admin.jobs import timeline
from orchestrator.admin.jobs.dependencies import DependencyList, neighbours_of
from orchestrator.admin.jobs.summary import JobSummary, verdict_of
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Batch, Job
from workers.models import Worker

ATTEMPTS_SHOWN = 50
LEASES_SHOWN = 50
STEP_SHOWN = 300


@dataclass(frozen=True)
class CurrentLease:
    """A lease as it may be shown: by its fingerprint, never by its id, which is a key."""

    fingerprint: str
    fence: int
    state: str
    worker: Worker
    leased_at: datetime
    lasted: str
    expires_in: str
    ended: str
    is_open: bool
    is_overdue: bool


@dataclass(frozen=True)
class JobPage:
    """What the template shows of one job."""

    verdict: JobSummary
    attempts: list[Job]
    leases: list[CurrentLease]
    moments: list[timeline.TimelineEntry]
    log: jobs_log.LogPage
    neighbours: DependencyList
    facts: list[tuple[str, Any]] = field(default_factory=list)


def page(job: Job, *, now: datetime) -> JobPage:
    leases = Lease.objects.filter(job=job).select_related("worker").order_by("-fence")
    held = [_held(lease, now) for lease in leases[:LEASES_SHOWN]]
    names = {lease.worker.worker_id: lease.worker.slug for lease in held}
    attempts = list(Job.objects.filter(root_job_ulid=job.root_job_ulid).order_by("-attempt")[:ATTEMPTS_SHOWN])
    return JobPage(
        verdict=verdict_of(job, attempts=attempts, holder=held[0] if held and held[0].is_open else None, now=now),
        attempts=attempts,
        leases=held,
        moments=timeline.moments(job, names),
        log=jobs_log.tail(job),
        neighbours=neighbours_of(job),
        facts=_facts(job),
    )


def _held(lease: Lease, now: datetime) -> CurrentLease:
    left = (lease.expires_at - now).total_seconds()
    return CurrentLease(
        fingerprint=fingerprint(lease.lease_ulid),
        fence=lease.fence,
        state=lease.state,
        worker=lease.worker,
        leased_at=lease.leased_at,
        lasted=formatting.elapsed(lease.leased_at, lease.completed_at or now),
        expires_in=formatting.format_duration(left),
        ended=(lease.ended_reason or "").replace("_", " "),
        is_open=lease.is_open,
        is_overdue=lease.is_open and left <= 0,
    )


def _facts(job: Job) -> list[tuple[str, Any]]:
    """What was asked for. Empty ones are left out."""
    yes = {True: "yes", False: "no", None: None}
    told = [
        ("Organization", f"{job.org_slug} / {job.project_slug}"),
        ("Repository", f"{job.repo_owner}/{job.repo_name}" if job.repo_name else None),
        ("Commit", formatting.code(job.git_commit) if job.git_commit else None),
        ("Ref", job.git_ref),
        ("Pull request", f"#{job.pull_request_number}" if job.pull_request_number else None),
        ("Command", formatting.code(job.command_line) if job.command_json else None),
        ("Name", job.spec.get("name")),
        ("Steps", _lines(job.spec.get("steps", ()))),
        ("Environment", ", ".join(sorted(job.spec.get("environment", ())))),  # names only: values may be secrets
        ("Image", job.spec.get("image")),
        ("Directory", job.working_directory),
        ("Timeout", formatting.format_duration(job.timeout_seconds) if job.timeout_seconds else None),
        ("Network", yes[job.allow_network]),
        ("New programs", yes[job.allow_exec]),
        ("Trigger", " by ".join(filter(None, (job.trigger_kind.replace("_", " "), job.trigger_actor)))),
        ("Sent from", job.source_address),
        ("Pool", f"{job.pool}, priority {job.priority}"),
        ("Least isolation", job.least_isolation),
        ("Needs", ", ".join(job.requirements)),
        ("Batch", _batch(job)),
        ("Correlation", formatting.code(job.correlation_id)),
    ]
    return [(name, value) for name, value in told if value]


def _lines(steps: Sequence[str]) -> SafeString:
    """One step a line, numbered as in the result."""
    rows = ((number, formatting.code(step[:STEP_SHOWN])) for number, step in enumerate(steps))
    return format_html_join("", "<div>{}: {}</div>", rows)


def _batch(job: Job) -> SafeString | None:
    if job.batch is None:
        return None
    return formatting.link(formatting.change_url(Batch, job.batch.batch_ulid), formatting.code(job.batch.batch_ulid))
