"""A job's events as a person reads them: newest first, when, who, from where to where, and the few facts they carry."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.admin import formatting
from orchestrator.admin.labels import EVENTS, JOB_COLOURS
from runtime_jobs.models import Job, JobEvent

SHOWN = 300
_ENDS = {"job.failed": "danger", "job.canceled": "default", "job.completed": "success"}
_TROUBLE = {"lease.expired", "lease.revoked", "lease.released", "job.requeued", "job.cancel_requested"}


@dataclass(frozen=True)
class TimelineEntry:
    """One event. `offset` counts from the job's first event."""

    seq: int
    words: str
    icon: str
    colour: str
    actor: str
    at: datetime
    offset: str
    from_state: str
    to_state: str
    to_colour: str
    facts: list[tuple[str, str]]


def moments(job: Job, names: dict[str, str]) -> list[TimelineEntry]:
    """`names`: the slug of each worker id that may appear."""
    events = JobEvent.objects.filter(job=job).order_by("-seq")[:SHOWN]
    return [_moment(event, job.created_at, names) for event in events]


def _moment(event: JobEvent, start: datetime, names: dict[str, str]) -> TimelineEntry:
    words, icon = EVENTS.get(event.event_type, (event.event_type, "circle"))
    return TimelineEntry(
        seq=event.seq,
        words=words,
        icon=icon,
        colour=_ENDS.get(event.event_type, "warning" if event.event_type in _TROUBLE else "primary"),
        actor=_actor(event, names),
        at=event.created_at,
        offset=f"+{formatting.format_duration((event.created_at - start).total_seconds())}",
        from_state=event.from_state or "",
        to_state=event.to_state or "",
        to_colour=JOB_COLOURS.get(event.to_state or "", "default"),
        facts=_facts(event, names),
    )


def _actor(event: JobEvent, names: dict[str, str]) -> str:
    name = names.get(event.actor_id, event.actor_id)
    return name if event.actor_kind == name else f"{event.actor_kind} {name}"


def _facts(event: JobEvent, names: dict[str, str]) -> list[tuple[str, str]]:
    facts = [
        (
            key.replace("_", " "),
            formatting.without_lease_ids(", ".join(value) if isinstance(value, list) else str(value)),
        )
        for key, value in event.payload_json.items()
        if value is not None and value is not False
    ]
    if event.worker_id and event.actor_id != event.worker_id:
        facts.append(("worker", names.get(event.worker_id, event.worker_id)))
    return facts
