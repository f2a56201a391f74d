"""Create, change and remove limits. Each function is part of the transaction of an operation."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count

from leases.advisory_locks import LIMIT_FULL, QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Limit, LimitKind, LimitScope, LimitSlot
from leases.scheduling.limit_attachment import ALL_TYPES, attach_limit, detach_limit
from leases.scheduling.reused_ids import get_or_create
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import TooManyConcurrencyKeys

__all__ = ["ALL_TYPES", "KeyRoom", "LimitTarget", "remove_limit", "set_limit"]

MAX_CONCURRENCY_KEYS = 5_000  # of an organization at a time
_RELEASE_AND_NOTIFY = """
SELECT pg_notify('lanes', pool)
  FROM (SELECT DISTINCT unnest(release_and_enqueue('{}', '{}', '{}', '{}', ARRAY[%s]::bigint[])) AS pool) released"""


@dataclass(frozen=True)
class LimitTarget:
    """The jobs that a limit applies to. `key`: a job type or `*`, a project, an address, a concurrency key, a pool."""

    scope: LimitScope
    org_slug: str
    key: str

    @classmethod
    def of_organization(cls, org_slug: str, job_type: str = ALL_TYPES) -> "LimitTarget":
        return cls(LimitScope.ORGANIZATION, org_slug, job_type)

    @classmethod
    def of_project(cls, org_slug: str, project_slug: str) -> "LimitTarget":
        return cls(LimitScope.PROJECT, org_slug, project_slug)

    @classmethod
    def of_limit(cls, limit: Limit) -> "LimitTarget":
        return cls(LimitScope(limit.scope), limit.org_slug, limit.key)

    def limit(self, kind: LimitKind) -> Limit | None:
        return Limit.objects.filter(kind=kind, **self.columns).first()

    @property
    def job_type(self) -> str | None:
        """The job type that the limit applies to, or None: it applies to several."""
        is_of_type = self.scope in {LimitScope.ORGANIZATION, LimitScope.JOB_TYPE}
        return self.key if is_of_type and self.key != ALL_TYPES else None

    @property
    def columns(self) -> dict[str, Any]:
        return {"scope": self.scope, "org_slug": self.org_slug, "key": self.key}

    def __str__(self) -> str:
        return f"{self.scope}:{'/'.join(part for part in (self.org_slug, self.key) if part not in {'', ALL_TYPES})}"


class KeyRoom:
    """Counts the concurrency keys of organizations for the jobs of one call.

    Each key costs a limit, a slot and a lane.
    """

    def __init__(self, named: Collection[tuple[str, str]]) -> None:
        """Look up the keys that are `named`, each with its organization's slug."""
        of_keys = Limit.objects.filter(kind=LimitKind.CONCURRENCY, scope=LimitScope.KEY)
        organizations = {org_slug for org_slug, _ in named}
        mine = of_keys.filter(org_slug__in=organizations)
        found = mine.filter(key__in={key for _, key in named}) if named else mine.none()
        self.known = set(found.values_list("org_slug", "key"))
        counts = mine.values("org_slug").annotate(keys=Count("pk")).order_by() if named else []
        self.keys = {row["org_slug"]: row["keys"] for row in counts}

    def take(self, org_slug: str, key: str) -> None:
        """Count the key if it is new.

        Raises:
            TooManyConcurrencyKeys: The organization has MAX_CONCURRENCY_KEYS already.
        """
        if (org_slug, key) in self.known:
            return
        current = self.keys.get(org_slug, 0)
        if current >= MAX_CONCURRENCY_KEYS:
            raise TooManyConcurrencyKeys(
                f"An organization has at most {MAX_CONCURRENCY_KEYS} concurrency keys. One that no job has used for an "
                "hour is forgotten; name fewer keys.",
                limit=MAX_CONCURRENCY_KEYS,
                current=current,
                retry_after=60,
            )
        self.known.add((org_slug, key))
        self.keys[org_slug] = current + 1


def set_limit(
    kind: LimitKind, subject: LimitTarget, *, set_at: datetime | None = None, actor: str = "", **terms: Any
) -> Limit:
    """Create or change a limit. Running jobs above a lowered limit continue; none starts until a slot is free.

    Args:
        kind: The kind of limit.
        subject: The jobs that it applies to.
        set_at: Recorded as the time of the change; by default the database's time after the last lock. An earlier time
            would precede claims that this call waited for, and the audit would count their starts against the limit.
        actor: The actor, recorded with the limit.
        **terms: `max_active`, or `per_hour` and `burst`; `until`, `note`, `binds_below`, `one_shot`.
    """
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, subject.org_slug)
    limit, made = get_or_create(Limit, kind=kind, **subject.columns, defaults=terms)
    advisory_xact_lock(LIMIT_FULL, limit.pk)
    if terms.get("max_active") is not None:
        _resize_slots(limit, terms["max_active"])
    if made:
        attach_limit(limit)
    # A claim that spends tokens holds the row until its commit: the bucket is read after that, or its starts are lost.
    limit = Limit.objects.select_for_update(no_key=True).get(pk=limit.pk)
    now = database_now()
    changed = terms | {"set_by": actor, "set_at": set_at or now, "version": limit.version + (not made)}
    if limit.spent_until and limit.per_hour and terms.get("per_hour"):
        owed = max(timedelta(), limit.spent_until - now) * limit.per_hour
        changed["spent_until"] = now + owed / terms["per_hour"]  # as many starts, made good at the new pace
    Limit.objects.filter(pk=limit.pk).update(**changed)
    limit.refresh_from_db()
    if not made:
        _wake_blocked(limit)  # no job waits for a new limit
    return limit


def remove_limit(kind: LimitKind, subject: LimitTarget) -> bool:
    """Remove a limit and unblock its jobs. Return whether there was one."""
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, subject.org_slug)
    limit = subject.limit(kind)
    if limit is None:
        return False
    advisory_xact_lock(LIMIT_FULL, limit.pk)
    detach_limit(limit)  # first: this waits for claims, which lock rows of queues
    _wake_blocked(limit)
    LimitSlot.objects.filter(limit_id=limit.pk).delete()
    limit.delete()
    return True


def _resize_slots(limit: Limit, max_active: int) -> None:
    """Adjust the slots to 0 to N - 1. An occupied slot above is retired: it is deleted when its job ends."""
    slots = LimitSlot.objects.filter(limit_id=limit.pk)
    slots.filter(n__gte=max_active, job_id__isnull=True).delete()
    slots.filter(n__gte=max_active).update(retired=True)
    slots.filter(n__range=(0, max_active - 1)).update(retired=False)
    there = set(slots.values_list("n", flat=True))
    LimitSlot.objects.bulk_create(LimitSlot(limit_id=limit.pk, n=n) for n in range(max_active) if n not in there)


def _wake_blocked(limit: Limit) -> None:
    """Unblock the queues and lanes of a raised limit, and notify the workers of its pools."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reassign_overflow_slots(%s)", [limit.pk])
        cursor.execute(_RELEASE_AND_NOTIFY, [limit.pk])
        if limit.scope == LimitScope.POOL:
            cursor.execute("SELECT pg_notify('lanes', %s)", [limit.key])
        elif limit.scope == LimitScope.JOB_TYPE:
            cursor.execute("SELECT pg_notify('lanes', pool) FROM (SELECT DISTINCT pool FROM lane_queues) q")
