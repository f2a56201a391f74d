"""Attaches limits to queues and lanes, and counts the jobs that already run from them."""

from collections.abc import Iterable
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from leases.advisory_locks import LIMIT_FULL, LIMITS_OF_QUEUE, advisory_xact_lock
from leases.models import Lane, LaneProfile, LaneQueue, Limit, LimitKind, LimitScope, LimitSlot
from leases.models.limits import LANE_SCOPES, QUEUE_SCOPES
from runtime_jobs.models import Job
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import LEASED_STATES

ALL_TYPES = "*"
# Emergency jobs have a limit of their own instead of these.
SKIPPED_BY_EMERGENCIES = (LimitKind.ORGANIZATION, LimitKind.PLAN, LimitKind.RATE)
# These stop new starts only; running jobs do not count.
NOT_COUNTING = (LimitKind.PAUSE, LimitKind.BREAKER)


def limits_for_queue(*, org_slug: str, job_type: str, priority: int) -> list[int]:
    """Return the limits of a new queue of this organization, type and priority, the narrower first."""
    found = Limit.objects.filter(scope=LimitScope.ORGANIZATION, org_slug=org_slug, key__in=[job_type, ALL_TYPES])
    if priority >= EMERGENCY:
        found = found.exclude(kind__in=SKIPPED_BY_EMERGENCIES)
    else:
        found = found.exclude(kind=LimitKind.EMERGENCY)
    return list(found.order_by("-key", "pk").values_list("pk", flat=True))


def limits_for_lane(*, org_slug: str, project_slug: str, source_address: str, concurrency_key: str) -> list[int]:
    """Return the limits of a new lane, besides those of its queue."""
    mine = (
        Q(scope=LimitScope.PROJECT, org_slug=org_slug, key=project_slug)
        | Q(scope=LimitScope.ADDRESS, org_slug="", key=source_address)
        | Q(scope=LimitScope.KEY, org_slug=org_slug, key=concurrency_key)
    )
    return list(Limit.objects.filter(mine).order_by("pk").values_list("pk", flat=True))


def attach_limit(limit: Limit) -> None:
    """Attach a new limit to existing queues and lanes, and count the jobs that run."""
    queues, lanes = _lock_targets(limit)
    if limit.max_active is not None and limit.kind not in NOT_COUNTING:
        _backfill_slots(limit, _running(limit, queues, lanes))
    for row in _rows(Lane, lanes) + _rows(LaneQueue, queues):
        row.limits = [*row.limits, limit.pk]
        row.save(update_fields=["limits"])
    _notify_affected_pools(queues, lanes)


def detach_limit(limit: Limit) -> None:
    """Remove a limit from the lists of its queues and lanes."""
    queues, lanes = _lock_targets(limit)
    for row in _rows(Lane, lanes) + _rows(LaneQueue, queues):
        row.limits = [other for other in row.limits if other != limit.pk]
        row.save(update_fields=["limits"])
    _notify_affected_pools(queues, lanes)


def _lock_targets(limit: Limit) -> tuple[list[int], list[int]]:
    """Return the queues and lanes of a limit, after a wait for the claims that read them.

    All advisory locks come first: claims and releases lock their rows before they ask for more.
    """
    queues, lanes = _queues(limit), _lanes(limit)
    for queue_id in sorted({*queues, *(queue for queue, _ in lanes)}):
        advisory_xact_lock(LIMITS_OF_QUEUE, queue_id)
    return queues, [lane for _, lane in lanes]


def _notify_affected_pools(queues: list[int], lanes: list[int]) -> None:
    """Notify pools after the commit: claims skip queues whose advisory lock is taken, and may have found nothing."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT pg_notify('lanes', pool) FROM (SELECT DISTINCT pool FROM queue_heads WHERE head_id IS NOT NULL
                  AND (queue_id = ANY (%s) OR queue_id IN (SELECT queue_id FROM lanes WHERE id = ANY (%s)))) q""",
            [queues, lanes],
        )


def _rows(model: type[Lane] | type[LaneQueue], keys: list[int]) -> list[Any]:
    return list(model.objects.select_for_update(no_key=True).filter(pk__in=keys).order_by("pk"))


def queues_of_organization(org_slug: str, job_type: str) -> QuerySet[LaneQueue]:
    """Return the queues of an organization and a job type, or of all types."""
    queues = LaneQueue.objects.filter(org_slug=org_slug)
    if job_type == ALL_TYPES:
        return queues
    types = LaneProfile.objects.filter(job_type=job_type)
    return queues.filter(profile_id__in=list(types.values_list("pk", flat=True)))


def lock_for_changes(org_slug: str, job_type: str, limits: Iterable[Limit], *, counts_running: bool) -> None:
    """Take the locks of several changes to limits of one target, in the order that all transactions keep.

    A change takes its advisory locks before the rows that it writes. A second change in the same transaction would take
    its locks after those rows, and could wait for a claim that waits for one of the rows.

    Args:
        org_slug: The organization.
        job_type: The job type, or all types.
        limits: The limits that exist and are changed or removed.
        counts_running: Whether a new limit counts the jobs that run. Their rows are locked then, too.
    """
    queues = queues_of_organization(org_slug, job_type).order_by("pk")
    for queue_id in queues.values_list("pk", flat=True):
        advisory_xact_lock(LIMITS_OF_QUEUE, queue_id)
    if counts_running:
        lanes = Lane.objects.filter(queue_id__in=queues.values("pk")).values("pk")
        running = Job.objects.filter(state__in=LEASED_STATES, lane_id__in=lanes)
        list(running.select_for_update(no_key=True, of=("self",)).order_by("pk").values_list("pk"))
    for limit_id in sorted(limit.pk for limit in limits):
        advisory_xact_lock(LIMIT_FULL, limit_id)


def _queues(limit: Limit) -> list[int]:
    if limit.scope not in QUEUE_SCOPES:
        return []
    queues = queues_of_organization(limit.org_slug, limit.key)
    if limit.kind == LimitKind.EMERGENCY:
        queues = queues.filter(priority__gte=EMERGENCY)
    elif limit.kind in SKIPPED_BY_EMERGENCIES:
        queues = queues.filter(priority__lt=EMERGENCY)
    return list(queues.order_by("pk").values_list("pk", flat=True))


def _lanes(limit: Limit) -> list[tuple[int, int]]:
    """Return pairs of queue and lane."""
    if limit.scope not in LANE_SCOPES:
        return []
    lanes = Lane.objects.all()
    if limit.scope == LimitScope.ADDRESS:
        lanes = lanes.filter(source_address=limit.key)
    else:
        name = "project_slug" if limit.scope == LimitScope.PROJECT else "concurrency_key"
        queues = LaneQueue.objects.filter(org_slug=limit.org_slug).values("pk")
        lanes = lanes.filter(queue_id__in=queues, **{name: limit.key})
    return list(lanes.order_by("pk").values_list("queue_id", "pk"))


def _running(limit: Limit, queues: list[int], lanes: list[int]) -> QuerySet[Job]:
    running = Job.objects.filter(state__in=LEASED_STATES)
    if limit.scope == LimitScope.ADDRESS:
        return running.filter(source_address=limit.key)
    if limit.scope in QUEUE_SCOPES:
        return running.filter(lane_id__in=Lane.objects.filter(queue_id__in=queues).values("pk"))
    return running.filter(lane_id__in=lanes)


def _backfill_slots(limit: Limit, running: QuerySet[Job]) -> None:
    """Give each running job a slot. Slots above the limit are retired.

    The jobs are locked: one that is ending would not see its slot, and never release it.
    """
    locked = running.select_for_update(no_key=True, of=("self",)).order_by("pk")
    for n, job_id in enumerate(locked.values_list("pk", flat=True)):
        LimitSlot.objects.update_or_create(
            limit_id=limit.pk, n=n, defaults={"job_id": job_id, "retired": n >= (limit.max_active or 0)}
        )
