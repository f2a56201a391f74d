"""The box at the top of a job's page: its state in words, the cause, and what an operator can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from orchestrator.admin import formatting
from orchestrator.admin.jobs.lease_rows import LeaseTableRow
from orchestrator.admin.labels import (
    CANCELS,
    FAILURES,
    STATE_HEADLINES,
    WAIT_COLOURS,
    ReasonLabel,
    count_label,
    job_badge,
    queue_label,
    stored_actor_label,
)
from orchestrator.selectors.pending_reasons.service import pending_for
from orchestrator.step_logs.log_tails import redact_lease_ids
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.states import WAITING_STATES, JobState


@dataclass
class JobSummary:
    """Contents of the box.

    Attributes:
        headline: State or cause.
        colour: The theme's name of the colour.
        badge: Text of the badge.
        sentences: Details and advice.
        message: Quoted message of a worker or a person.
        percent: Progress of the command as its worker reports it.
        run_id: Run that the button View run leads to.
        counts: Counts of the run's results.
    """

    headline: str
    colour: str
    badge: str
    sentences: list[str] = field(default_factory=list)
    message: str = ""
    percent: int | None = None
    run_id: str = ""
    counts: list[tuple[str, object]] = field(default_factory=list)


def summarize(job: Job, *, attempts: list[Job], lease: LeaseTableRow | None, now: datetime) -> JobSummary:
    """Describe a job.

    Args:
        job: The job.
        attempts: All attempts of the job.
        lease: The open lease, or None.
        now: Current time.
    """
    badge = job_badge(job)
    summary = JobSummary(STATE_HEADLINES[job.state], badge.colour, badge.text)
    if job.state == JobState.FAILED:
        _add_failure(job, summary)
    elif job.state == JobState.CANCELED:
        _add_cancel(job, summary)
    elif job.state == JobState.SUCCEEDED:
        _add_result(job, summary)
    elif job.state in WAITING_STATES:
        _add_wait(job, summary)
    elif job.state == JobState.LOST:
        _add_loss(job, summary, now)
    else:
        _add_progress(job, summary, lease, now)
    _add_omissions(job.result or {}, summary)
    _add_next_attempt(job, summary, attempts)
    return summary


def _add_failure(job: Job, summary: JobSummary) -> None:
    label = FAILURES.get(job.failure_reason or "", ReasonLabel("Failed.", ""))
    summary.headline = label.summary
    summary.sentences = [label.advice] if label.advice else []
    if job.exit_code is not None:
        summary.sentences.insert(0, f"Exit code {job.exit_code}.")
    summary.message = redact_lease_ids(job.failure_message or "")
    if UnsentRun.objects.filter(job=job).exists():
        summary.sentences.append("The results are stored. Re-upload results sends them without executing the command.")


def _add_loss(job: Job, summary: JobSummary, now: datetime) -> None:
    label = FAILURES.get(job.failure_reason or "", ReasonLabel("The lease ended without a result.", ""))
    left = (job.late_result_at or now) - now
    window = (
        "is about to fail" if left <= timedelta() else f"fails in {formatting.format_duration(left.total_seconds())}"
    )
    summary.sentences = [label.summary, f"A late result of the worker still counts. Without one the job {window}."]
    summary.message = redact_lease_ids(job.failure_message or "")


def _add_cancel(job: Job, summary: JobSummary) -> None:
    reason = CANCELS.get(job.cancel_reason or "", formatting.humanize(job.cancel_reason))
    summary.headline = f"Canceled: {reason}"
    summary.sentences = [f"Canceled by {stored_actor_label(job.cancel_actor or '')}."]
    summary.message = redact_lease_ids(job.cancel_message or "")


def _add_result(job: Job, summary: JobSummary) -> None:
    summary.run_id = job.ingest_run_id or ""
    if job.exit_code:
        summary.headline = f"Succeeded, but the command exited with code {job.exit_code}"
    elif job.exit_code is not None:
        summary.sentences.append("The command exited with code 0.")
    if job.ingest_run_id:
        summary.sentences.append("The results are uploaded.")
    counts = (job.result or {}).get("counts")
    if isinstance(counts, dict):
        summary.counts = [(count_label(str(name), count), count) for name, count in counts.items()][:8]


def _add_omissions(result: dict[str, Any], summary: JobSummary) -> None:
    """Say what the worker left out: of the log, and of the files."""
    if lost := result.get("log_truncated"):
        size = f"{lost['bytes']:,} bytes in {formatting.pluralize(lost['lines'], 'line')}"
        summary.sentences.append(
            f"The log has the beginning and the end of the output; {size} between them were dropped."
        )
    if omitted := result.get("files_omitted"):
        reasons = ", ".join(map(formatting.humanize, sorted(result.get("files_omitted_reasons", {}))))
        files = f"{formatting.pluralize(omitted, 'file')} left out of the artifacts"
        summary.sentences.append(f"{files}: {reasons}." if reasons else f"{files}.")


def _add_wait(job: Job, summary: JobSummary) -> None:
    pending = pending_for([job])[job.pk]
    if pending.reason:
        summary.sentences = [pending.reason.message]
        summary.colour = WAIT_COLOURS.get(pending.reason.code, summary.colour)
    if pending.place and "position" not in (pending.reason.facts if pending.reason else {}):
        summary.sentences.append(f"{queue_label(pending.place)}.")
    if job.fence:
        summary.sentences.append(f"Redelivered: leased {formatting.pluralize(job.fence, 'time')} before.")


def _add_progress(job: Job, summary: JobSummary, lease: LeaseTableRow | None, now: datetime) -> None:
    duration = formatting.elapsed(job.phase_at, now)
    if lease:
        summary.headline = f"{STATE_HEADLINES[job.state]} on {lease.worker.slug}"
        expiry = "The lease is overdue."
        if not lease.is_overdue:
            expiry = f"The lease expires in {lease.expires_in} without a heartbeat."
        summary.sentences = [f"In this state for {duration}. {expiry}"]
    progress = job.progress if isinstance(job.progress, dict) else {}
    if isinstance(percent := progress.get("percent"), int):
        summary.percent = max(0, min(100, percent))
    message = str(progress.get("message") or progress.get("current_step") or "")
    summary.message = redact_lease_ids(message)
    if job.cancel_requested_at:
        summary.sentences.append(_cancel_request(job, now))


def _cancel_request(job: Job, now: datetime) -> str:
    left = (job.cancel_deadline_at or now) - now
    rest = f"deadline in {formatting.format_duration(left.total_seconds())}" if left > timedelta() else "overdue"
    reason = f" ({redact_lease_ids(job.cancel_message)})" if job.cancel_message else ""
    return f"Cancel requested by {stored_actor_label(job.cancel_actor or '')}{reason}; {rest}."


def _add_next_attempt(job: Job, summary: JobSummary, attempts: list[Job]) -> None:
    newer = [attempt for attempt in attempts if attempt.retry_of_job_ulid == job.job_ulid]
    if newer:
        summary.sentences.append(f"Retried as attempt {newer[0].attempt}: {job_badge(newer[0]).text}.")
