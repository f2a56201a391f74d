"""The timeline of a job's page: its events, newest first."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.admin import formatting
from orchestrator.admin.labels import EVENTS, JOB_COLOURS, PROGRESS_EVENT, STATE_HEADLINES, actor_label
from runtime_jobs.models import Job, JobEvent

MAX_EVENTS = 300
_END_COLOURS = {"job.failed": "danger", "job.canceled": "default", "job.completed": "success"}
_WARNINGS = {"lease.expired", "lease.revoked", "lease.released", "job.requeued", "job.lost", "job.cancel_requested"}


@dataclass(frozen=True)
class TimelineEntry:
    """An event. `offset` is the time since the job's creation."""

    seq: int
    label: str
    icon: str
    colour: str
    actor: str
    timestamp: datetime
    offset: str
    from_state: str
    to_state: str
    to_colour: str
    facts: list[tuple[str, str]]


def timeline_of(job: Job, worker_names: dict[str, str]) -> list[TimelineEntry]:
    """Read the newest MAX_EVENTS events of a job. `worker_names` maps worker ids to slugs."""
    events = JobEvent.objects.filter(job=job).order_by("-seq")[:MAX_EVENTS]
    return [_entry(event, job.created_at, worker_names) for event in events]


def _entry(event: JobEvent, start: datetime, worker_names: dict[str, str]) -> TimelineEntry:
    label, icon = EVENTS.get(event.event_type, (event.event_type, "circle"))
    if event.event_type == PROGRESS_EVENT and event.to_state:
        label = STATE_HEADLINES[event.to_state]
    return TimelineEntry(
        seq=event.seq,
        label=label,
        icon=icon,
        colour=_END_COLOURS.get(event.event_type, "warning" if event.event_type in _WARNINGS else "primary"),
        actor=actor_label(event.actor_kind, event.actor_id, worker_names),
        timestamp=event.created_at,
        offset=f"+{formatting.elapsed(start, event.created_at)}",
        from_state=formatting.humanize(event.from_state),
        to_state=formatting.humanize(event.to_state),
        to_colour=JOB_COLOURS.get(event.to_state or "", "default"),
        facts=_facts(event, worker_names),
    )


def _facts(event: JobEvent, worker_names: dict[str, str]) -> list[tuple[str, str]]:
    facts = [
        (formatting.humanize(key), formatting.json_text(value))
        for key, value in event.payload_json.items()
        if value is not None and value is not False
    ]
    if event.worker_id and event.actor_id != event.worker_id:
        facts.append(("worker", worker_names.get(event.worker_id, event.worker_id)))
    return facts
