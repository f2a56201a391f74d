"""The numbers of the first page. Each costs the same with a million jobs as with ten: an index, a bound, or both."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, Sum

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.models import ClockBeat
from orchestrator.selectors.pending_reasons.workers import SILENT_AFTER
from runtime_jobs.models import Job
from runtime_jobs.states import FAILURE_CLASSES, LEASED_STATES, JobState
from workers.models import Worker
from workers.registry.models import WorkerState

CLOCK_LATE = timedelta(seconds=10)  # what is due for longer, the clock should have done
COUNTED = 10_000
DAY = timedelta(hours=24)


@dataclass(frozen=True)
class QueueCounts:
    """`waiting` counts up to COUNTED and then one more."""

    pool: str
    waiting: int
    oldest: datetime


@dataclass(frozen=True)
class WorkerCounts:
    """The workers of a pool. `capacity` is that of the alive ones."""

    pool: str
    alive: int
    silent: int
    draining: int
    maintenance: int
    capacity: int


@dataclass(frozen=True)
class FailureCounts:
    reason: str
    failure_class: str
    count: int


def silent(now: datetime) -> Q:
    """Active workers that nobody has heard lately, or ever."""
    unheard = Q(last_seen_at__lte=now - SILENT_AFTER) | Q(last_seen_at=None, created_at__lte=now - SILENT_AFTER)
    return Q(state=WorkerState.ACTIVE) & unheard


def alive(now: datetime) -> Q:
    return Q(state=WorkerState.ACTIVE) & ~silent(now)


def clock_beat() -> ClockBeat | None:
    return ClockBeat.objects.order_by("-beat_at").first()


def is_silent(beat: ClockBeat | None, now: datetime) -> bool:
    return beat is None or now - beat.beat_at > timedelta(seconds=settings.CLOCK_SILENT_AFTER_SECONDS)


def queues() -> list[QueueCounts]:
    with connection.cursor() as cursor:
        cursor.execute(_sql("queues"), {"counted": COUNTED})
        return [QueueCounts(*row) for row in cursor.fetchall()]


def crews(now: datetime) -> list[WorkerCounts]:
    rows = Worker.objects.exclude(state=WorkerState.REVOKED).values("pool__slug").order_by("pool__slug")
    counted = rows.annotate(
        alive=Count("pk", filter=alive(now)),
        silent=Count("pk", filter=silent(now)),
        draining=Count("pk", filter=Q(state=WorkerState.DRAINING)),
        maintenance=Count("pk", filter=Q(state=WorkerState.MAINTENANCE)),
        room=Sum("capacity", filter=alive(now), default=0),
    )
    return [
        WorkerCounts(*row)
        for row in counted.values_list("pool__slug", "alive", "silent", "draining", "maintenance", "room")
    ]


def held() -> dict[str, dict[str, int]]:
    """How many jobs each pool holds, by state."""
    found: dict[str, dict[str, int]] = {}
    rows = (
        Job.objects.filter(state__in=LEASED_STATES).values_list("pool", "state").annotate(count=Count("id")).order_by()
    )
    for pool, state, count in rows:
        found.setdefault(pool, {})[state] = count
    return found


def failures(now: datetime) -> list[FailureCounts]:
    """Of the last day, by reason, most first. Looks at the newest failed jobs only, as many as COUNTED."""
    newest = Job.objects.filter(status="failed").order_by("-created_at").values("id")[:COUNTED]
    rows = Job.objects.filter(id__in=newest, state=JobState.FAILED, finished_at__gte=now - DAY)
    counted = rows.values_list("failure_reason").annotate(count=Count("id")).order_by("-count", "failure_reason")
    return [FailureCounts(reason, str(FAILURE_CLASSES.get(reason, "")), count) for reason, count in counted]


def overdue_leases(now: datetime) -> int:
    return Lease.objects.open().filter(expires_at__lte=now - CLOCK_LATE).count()


def never_acknowledged(now: datetime) -> int:
    """Hand-outs of the last day that no worker took up, among the newest COUNTED."""
    newest = Lease.objects.order_by("-id").values("id")[:COUNTED]
    rows = Lease.objects.filter(id__in=newest, state=LeaseState.REVOKED, ended_reason="not_acknowledged")
    return rows.filter(completed_at__gte=now - DAY).count()


def overdue_cancels(now: datetime) -> int:
    return Job.objects.filter(state__in=LEASED_STATES, cancel_deadline_at__lte=now - CLOCK_LATE).count()


@cache
def _sql(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()
