"""Counts for the dashboard. Each costs the same with a million jobs as with ten: an index, a bound, or both."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from django.conf import settings
from django.db import connection, models
from django.db.models import Count, F, OuterRef, Q, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.selectors.pending_reasons.workers import SILENT_AFTER
from runtime_jobs.models import Job
from runtime_jobs.states import FAILURE_CLASSES, LEASED_STATES
from workers.models import Worker
from workers.registry.models import WorkerState

OVERDUE_GRACE = timedelta(seconds=10)  # the scheduler process handles what is due within a second or two
HOUSEKEEPING_DELAY = timedelta(minutes=5)  # a process claims a due task within seconds, unless all of them are busy
DISPATCH_DELAY = timedelta(minutes=1)  # a dispatcher reads events and sends deliveries within a second
FAILS_LASTINGLY = Q(failures__gte=3) | Q(failures__gt=0, due_at=None)  # of a housekeeping task
RUNNER_SILENCE = timedelta(seconds=15)
MAX_COUNT = 10_000
DAY = timedelta(hours=24)


@dataclass(frozen=True)
class QueueCounts:
    """Queued jobs of a pool. `queued` is counted up to MAX_COUNT + 1."""

    pool: str
    queued: int
    oldest: datetime


@dataclass(frozen=True)
class WorkerCounts:
    """Workers of a pool by health. `capacity` and `free` count slots of online workers."""

    pool: str
    online: int = 0
    offline: int = 0
    never_connected: int = 0
    draining: int = 0
    maintenance: int = 0
    capacity: int = 0
    free: int = 0


@dataclass(frozen=True)
class FailureCounts:
    """Failed jobs of the last day by reason."""

    reason: str
    failure_class: str
    count: int


@dataclass(frozen=True)
class HousekeepingCounts:
    """Housekeeping tasks that fail again and again, and since when a due task waits for a process."""

    failing: int
    waiting_since: datetime | None


@dataclass(frozen=True)
class DispatchCounts:
    """State of what leaves the installation.

    Attributes:
        is_silent: Whether a webhook waits for events and no dispatcher has been seen for `DISPATCH_DELAY`.
        beat_at: The last beat of a dispatcher; None if there was none.
        waiting_since: When the oldest delivery was due that no dispatcher has sent, if that is long ago.
        dead_letters: Dead letters, counted up to MAX_COUNT + 1.
        stopped_webhooks: Webhooks that were paused or disabled because their receiver has failed or is gone.
    """

    is_silent: bool
    beat_at: datetime | None
    waiting_since: datetime | None
    dead_letters: int
    stopped_webhooks: int


# --- health of workers ------------------------------------------------------------------------------------------------


def online(now: datetime) -> Q:
    """Select active workers with a recent request."""
    return Q(state=WorkerState.ACTIVE, last_seen_at__gt=now - SILENT_AFTER)


def offline(now: datetime) -> Q:
    """Select active workers that have connected before, but not recently."""
    return Q(state=WorkerState.ACTIVE, last_seen_at__lte=now - SILENT_AFTER)


def never_connected() -> Q:
    """Select active workers that were registered and have never sent a request."""
    return Q(state=WorkerState.ACTIVE, last_seen_at=None)


def with_active_leases(workers: models.QuerySet[Worker]) -> models.QuerySet[Worker]:
    """Annotate each worker with `active_leases`, in the same statement."""
    open_leases = Lease.objects.open().filter(worker=OuterRef("worker_id")).order_by().values("worker")
    return workers.annotate(
        active_leases=Coalesce(Subquery(open_leases.annotate(count=Count("id")).values("count")), 0)
    )


def worker_counts(now: datetime) -> list[WorkerCounts]:
    """Count the workers of each pool by health. Revoked and archived workers do not count."""
    workers = with_active_leases(Worker.objects.exclude(state__in=[WorkerState.REVOKED, WorkerState.ARCHIVED]))
    free_slots = Greatest(F("capacity") - F("active_leases"), 0)
    counted = (
        workers.values("pool__slug")
        .order_by("pool__slug")
        .annotate(
            online=Count("pk", filter=online(now)),
            offline=Count("pk", filter=offline(now)),
            never_connected=Count("pk", filter=never_connected()),
            draining=Count("pk", filter=Q(state=WorkerState.DRAINING)),
            maintenance=Count("pk", filter=Q(state=WorkerState.MAINTENANCE)),
            slots=Sum("capacity", filter=online(now), default=0),
            free=Sum(free_slots, filter=online(now), default=0),
        )
    )
    columns = ("pool__slug", "online", "offline", "never_connected", "draining", "maintenance", "slots", "free")
    return [WorkerCounts(*row) for row in counted.values_list(*columns)]


# --- scheduler process ------------------------------------------------------------------------------------------------


def scheduler_heartbeat() -> ClockBeat | None:
    """Return the newest heartbeat of a scheduler process."""
    return ClockBeat.objects.order_by("-beat_at").first()


def is_scheduler_down(heartbeat: ClockBeat | None, now: datetime) -> bool:
    """Report whether the newest heartbeat is missing or too old."""
    return heartbeat is None or now - heartbeat.beat_at > timedelta(seconds=settings.CLOCK_SILENT_AFTER_SECONDS)


# --- jobs and leases --------------------------------------------------------------------------------------------------


def queue_counts() -> list[QueueCounts]:
    """Count the queued jobs of each pool, with the creation time of the oldest."""
    with connection.cursor() as cursor:
        cursor.execute(_sql("queues"), {"max_count": MAX_COUNT})
        return [QueueCounts(*row) for row in cursor.fetchall()]


def running_counts() -> dict[str, int]:
    """Count the leased jobs of each pool."""
    rows = Job.objects.filter(state__in=LEASED_STATES).values_list("pool").annotate(count=Count("id")).order_by()
    return dict(rows)


def failure_counts(now: datetime) -> list[FailureCounts]:
    """Count failed jobs of the last day by reason, most frequent first, among the last MAX_COUNT that ended."""
    with connection.cursor() as cursor:
        cursor.execute(_sql("failures"), {"since": now - DAY, "max_count": MAX_COUNT})
        return [FailureCounts(reason, str(FAILURE_CLASSES.get(reason, "")), count) for reason, count in cursor]


def silent_runners(now: datetime) -> dict[str, datetime]:
    """Return the runners that execute a job and are silent, with their last message about one, the oldest first.

    A runner sends a heartbeat each second.
    """
    leases = Lease.objects.open().filter(worker__pool__slug=settings.RUNNER_POOL)
    heard = leases.annotate(last=Coalesce("last_heartbeat_at", "leased_at")).filter(last__lte=now - RUNNER_SILENCE)
    rows = heard.order_by("last").values_list("worker__slug", "last")[: MAX_COUNT + 1]
    return dict(reversed(list(rows)))


def overdue_leases(now: datetime) -> int:
    """Count open leases whose expiry has passed."""
    return Lease.objects.open().filter(expires_at__lte=now - OVERDUE_GRACE).count()


def never_acknowledged(now: datetime) -> int:
    """Count leases of the last day that no worker acknowledged, among the newest MAX_COUNT leases."""
    newest = Lease.objects.order_by("-id").values("id")[:MAX_COUNT]
    rows = Lease.objects.filter(id__in=newest, state=LeaseState.REVOKED, ended_reason="not_acknowledged")
    return rows.filter(completed_at__gte=now - DAY).count()


def overdue_cancels(now: datetime) -> int:
    """Count running jobs whose cancel deadline has passed."""
    return Job.objects.filter(state__in=LEASED_STATES, cancel_deadline_at__lte=now - OVERDUE_GRACE).count()


def housekeeping_counts(now: datetime) -> HousekeepingCounts:
    """Count tasks that fail, and find the task that has waited longest for a process."""
    lasting = HousekeepingTask.objects.filter(FAILS_LASTINGLY).values("pk")[: MAX_COUNT + 1]
    unclaimed = Q(claimed_until=None) | Q(claimed_until__lte=now)
    waiting = HousekeepingTask.objects.filter(unclaimed, due_at__lte=now - HOUSEKEEPING_DELAY).order_by("due_at")
    return HousekeepingCounts(failing=lasting.count(), waiting_since=waiting.values_list("due_at", flat=True).first())


def dispatch_counts(now: datetime) -> DispatchCounts:
    """Find out whether dispatchers run and keep up, and count what could not be delivered."""
    arguments: dict[str, datetime | int] = {"now": now, "due_before": now - DISPATCH_DELAY, "max_count": MAX_COUNT}
    with connection.cursor() as cursor:
        cursor.execute(_sql("dispatch"), arguments)
        beat_at, is_used, waiting_since, dead_letters, stopped_webhooks = cursor.fetchone()
    return DispatchCounts(
        is_silent=is_used and (beat_at is None or now - beat_at > DISPATCH_DELAY),
        beat_at=beat_at,
        waiting_since=waiting_since,
        dead_letters=dead_letters,
        stopped_webhooks=stopped_webhooks,
    )


@cache
def _sql(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()
