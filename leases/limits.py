"""Limits on how many jobs run at once: made, raised, lowered, lifted. Each function is part of a verb's transaction."""

from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from leases.models.lanes import Lane, LaneProfile, LaneQueue
from leases.models.limits import Limit, LimitKind, LimitSlot
from runtime_jobs.models import Job
from runtime_jobs.states import HELD

ALL_TYPES = "*"


def guard(number: int, key: int | str, *, shared: bool = False) -> None:
    """Wait for a guard and hold it until the transaction ends. `leases/sql/lanes_settle.sql` says which there are."""
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    hashed = "hashtext(%s)" if isinstance(key, str) else "%s"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s, {hashed})", [number, key])


def limits_of_queue(*, org_slug: str, job_type: str) -> list[int]:
    """The limits that hold a new queue of this organization and type, the narrower first."""
    found = Limit.objects.filter(kind=LimitKind.ORGANIZATION, org_slug=org_slug, key__in=[job_type, ALL_TYPES])
    return list(found.order_by("-key").values_list("pk", flat=True))


def set_organization_limit(*, org_slug: str, job_type: str = ALL_TYPES, max_active: int) -> Limit:
    """At most `max_active` jobs of the organization and type run at once from now on. What runs already, runs on."""
    guard(4, org_slug)
    limit, made = Limit.objects.get_or_create(
        kind=LimitKind.ORGANIZATION, org_slug=org_slug, key=job_type, defaults={"max_active": max_active}
    )
    guard(8, limit.pk)
    _fit_slots(limit, max_active)
    if made:
        _attach(limit)
    limit.max_active = max_active
    limit.save(update_fields=["max_active"])
    _let_go_on(limit)
    return limit


def _fit_slots(limit: Limit, max_active: int) -> None:
    """Slots 0 to N - 1 count. One above that is taken goes when its job ends."""
    slots = LimitSlot.objects.filter(limit_id=limit.pk)
    slots.filter(n__gte=max_active, job_id__isnull=True).delete()
    slots.filter(n__gte=max_active).update(retired=True)
    slots.filter(n__lt=max_active).update(retired=False)
    there = set(slots.values_list("n", flat=True))
    LimitSlot.objects.bulk_create(LimitSlot(limit_id=limit.pk, n=n) for n in range(max_active) if n not in there)


def lift_organization_limit(*, org_slug: str, job_type: str = ALL_TYPES) -> None:
    """Remove the limit, if there is one."""
    guard(4, org_slug)
    limit = Limit.objects.filter(kind=LimitKind.ORGANIZATION, org_slug=org_slug, key=job_type).first()
    if limit is None:
        return
    guard(8, limit.pk)
    for queue in _guarded(_queues(limit)):
        queue.limits = [other for other in queue.limits if other != limit.pk]
        queue.save(update_fields=["limits"])
    _let_go_on(limit)
    LimitSlot.objects.filter(limit_id=limit.pk).delete()
    limit.delete()


def _attach(limit: Limit) -> None:
    """Let the limit hold the queues that are there already, and the jobs that run from them."""
    queues = _queues(limit)
    for queue in _guarded(queues):
        queue.limits = [*queue.limits, limit.pk]
        queue.save(update_fields=["limits"])
    _adopt(limit, Job.objects.filter(lane_id__in=_lanes(queues), state__in=HELD))


def _guarded(queues: list[int]) -> Iterator[LaneQueue]:
    """Each as it is once no claim looks at it."""
    for queue_id in queues:
        guard(5, queue_id)
        yield LaneQueue.objects.get(pk=queue_id)


def _queues(limit: Limit) -> list[int]:
    queues = LaneQueue.objects.filter(org_slug=limit.org_slug)
    if limit.key != ALL_TYPES:
        types = LaneProfile.objects.filter(job_type=limit.key)
        queues = queues.filter(profile_id__in=list(types.values_list("pk", flat=True)))
    return list(queues.order_by("pk").values_list("pk", flat=True))


def _lanes(queues: list[int]) -> QuerySet[Any]:
    return Lane.objects.filter(queue_id__in=queues).values("pk")


def _adopt(limit: Limit, running: QuerySet[Job]) -> None:
    """Give each running job a slot. Those above the limit get one that is not given again."""
    for n, job_id in enumerate(running.order_by("pk").values_list("pk", flat=True)):
        LimitSlot.objects.update_or_create(
            limit_id=limit.pk, n=n, defaults={"job_id": job_id, "retired": n >= limit.max_active}
        )


def _let_go_on(limit: Limit) -> None:
    """A limit that was raised may have room again for those that it blocked."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lanes_hand_on(%s)", [limit.pk])
        cursor.execute("SELECT lanes_end('{}', '{}', '{}', '{}', ARRAY[%s])", [limit.pk])
