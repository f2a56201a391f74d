"""How a job stands, in words: what it does or how it ended, why, and what an operator can do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from orchestrator.admin import formatting
from orchestrator.admin.labels import CANCELS, FAILURES, JOB_COLOURS, PHASES, WAITING_COLOURS, ReasonLabel
from orchestrator.selectors.pending_reasons.service import pending_for
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.states import WAITING_STATES, JobState

if TYPE_CHECKING:
    from orchestrator.admin.jobs.page import CurrentLease


@dataclass
class JobSummary:
    """`message` is quoted: the words of a worker or of a person. `percent`: of the command, as its worker tells."""

    headline: str
    colour: str
    sentences: list[str] = field(default_factory=list)
    message: str = ""
    percent: int | None = None
    run_id: str = ""
    counts: list[tuple[str, object]] = field(default_factory=list)


def verdict_of(job: Job, *, attempts: list[Job], holder: CurrentLease | None, now: datetime) -> JobSummary:
    verdict = JobSummary(PHASES[job.state], JOB_COLOURS[job.state])
    if job.state == JobState.FAILED:
        _failed(job, verdict)
    elif job.state == JobState.CANCELED:
        _canceled(job, verdict)
    elif job.state == JobState.SUCCEEDED:
        _succeeded(job, verdict)
    elif job.state in WAITING_STATES:
        _waits(job, verdict)
    else:
        _runs(job, verdict, holder, now)
    _followed(job, verdict, attempts)
    return verdict


def _failed(job: Job, verdict: JobSummary) -> None:
    unknown = ReasonLabel("It failed.", "")
    meaning = FAILURES.get(job.failure_reason or "", unknown)
    verdict.headline = meaning.happened
    verdict.sentences = [meaning.advice] if meaning.advice else []
    verdict.message = formatting.without_lease_ids(job.failure_message or "")
    if UnsentRun.objects.filter(job=job).exists():
        verdict.sentences.append("Its run is kept here: Resend run uploads it without executing anything again.")


def _canceled(job: Job, verdict: JobSummary) -> None:
    reason = CANCELS.get(job.cancel_reason or "", job.cancel_reason or "")
    verdict.headline = f"Canceled: {reason}."
    verdict.sentences = [f"By {(job.cancel_actor or '').replace(':', ' ')}."]
    verdict.message = formatting.without_lease_ids(job.cancel_message or "")


def _succeeded(job: Job, verdict: JobSummary) -> None:
    verdict.headline = "Uploaded" if job.ingest_run_id else "Succeeded"
    verdict.run_id = job.ingest_run_id or ""
    if job.exit_code is not None:
        verdict.sentences = [f"Its command ended with exit code {job.exit_code}."]
    counts = (job.result or {}).get("counts")
    if isinstance(counts, dict):
        verdict.counts = [(str(name).replace("_", " "), count) for name, count in counts.items()][:8]


def _waits(job: Job, verdict: JobSummary) -> None:
    waiting = pending_for([job])[job.pk]
    if waiting.reason:
        verdict.sentences = [waiting.reason.message]
        verdict.colour = WAITING_COLOURS.get(waiting.reason.code, verdict.colour)
    if waiting.place and "position" not in (waiting.reason.facts if waiting.reason else {}):
        verdict.sentences.append(f"Number {waiting.place} in its queue.")
    if job.fence:
        verdict.sentences.append(f"Handed out {job.fence} time{'s' * (job.fence != 1)} before.")


def _runs(job: Job, verdict: JobSummary, holder: CurrentLease | None, now: datetime) -> None:
    for_long = formatting.elapsed(job.phase_at, now)
    if holder:
        verdict.headline = f"{PHASES[job.state]} on {holder.worker.slug}"
        lease = "is overdue" if holder.is_overdue else f"expires in {holder.expires_in} if nothing is heard"
        verdict.sentences = [f"For {for_long}; its lease {lease}."]
    progress = job.progress if isinstance(job.progress, dict) else {}
    if isinstance(percent := progress.get("percent"), int):
        verdict.percent = max(0, min(100, percent))
    verdict.message = formatting.without_lease_ids(str(progress.get("message") or progress.get("current_step") or ""))
    if job.cancel_requested_at:
        verdict.colour = "warning"
        verdict.sentences.append(_told_to_stop(job, now))


def _told_to_stop(job: Job, now: datetime) -> str:
    who = (job.cancel_actor or "").replace(":", " ")
    left = (job.cancel_deadline_at or now) - now
    rest = f"has {formatting.format_duration(left.total_seconds())} left" if left > timedelta() else "the time is over"
    why = f" ({formatting.without_lease_ids(job.cancel_message)})" if job.cancel_message else ""
    return f"Told to stop by {who}{why}; {rest}."


def _followed(job: Job, verdict: JobSummary, attempts: list[Job]) -> None:
    newer = [row for row in attempts if row.retry_of_job_ulid == job.job_ulid]
    if newer:
        verdict.sentences.append(f"Attempt {newer[0].attempt} followed: it is {newer[0].public_status}.")
