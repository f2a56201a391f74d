"""Reads quotas with their current use: running jobs, starts of the last hour, the next start."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection

from leases.scheduling.limits import ALL_TYPES
from leases.scheduling.quotas import Quota, read_quotas
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Organization
from runtime_jobs.specs import JOB_TYPES

MAX_STARTS = 50_000  # counted of one organization and job type
MAX_WAITING = 10_000  # counted of one organization
WINDOW = timedelta(hours=1)
# The conditions are those of two partial indexes.
_WAITING = """
SELECT o.slug, (
    SELECT count(*) FROM (
        SELECT FROM runtime_jobs WHERE org_slug = o.slug AND state = 'queued'
         UNION ALL
        SELECT FROM runtime_jobs WHERE org_slug = o.slug AND state = 'blocked'
         LIMIT %(bound)s) AS bounded)
  FROM unnest(%(organizations)s::text[]) AS o(slug)
"""


@dataclass(frozen=True)
class QuotaUse:
    """A quota and its use.

    Attributes:
        quota: The quota.
        active: The jobs that run.
        started_last_hour: The jobs that started in the last hour, counted up to `MAX_STARTS` of each job type.
        next_start_at: When the rate allows the next start. None: now, or when a job ends or the quota is changed.
        key: The place in the list of quotas.
    """

    quota: Quota
    active: int
    started_last_hour: int
    next_start_at: datetime | None
    key: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class QuotaRows:
    """The list of quotas, for pages by key: organizations, newest first, each with all types and then each type.

    Attributes:
        organizations: The slugs of the organizations, or None for all of them.
        job_types: The job types, in their order.
    """

    organizations: Collection[str] | None
    job_types: tuple[str, ...] = (ALL_TYPES, *JOB_TYPES)

    def fetch(self, after: Sequence[Any] | None, count: int, *, backward: bool) -> list[QuotaUse]:
        """Return up to `count` quotas after the key `after`, or before it, the nearest first."""
        organizations = Organization.objects.order_by("pk" if backward else "-pk")
        if self.organizations is not None:
            organizations = organizations.filter(slug__in=self.organizations)
        if after is not None:
            organizations = organizations.filter(**{"pk__gte" if backward else "pk__lte": after[0]})
        first = organizations.values_list("pk", "slug")[: count // len(self.job_types) + 2]
        places = range(len(self.job_types))
        keys = {
            (pk, place): (slug, self.job_types[place])
            for pk, slug in first
            for place in (reversed(places) if backward else places)
            if after is None or pk != after[0] or (place < after[1] if backward else place > after[1])
        }
        chosen = list(keys.items())[:count]
        uses = quota_uses([name for _, name in chosen])
        return [
            QuotaUse(use.quota, use.active, use.started_last_hour, use.next_start_at, key)
            for (key, _), use in zip(chosen, uses, strict=True)
        ]


def quota_uses(named: Sequence[tuple[str, str]]) -> list[QuotaUse]:
    """Return the quotas of these organizations and job types with their use, in this order, with two statements."""
    if not named:
        return []
    now = database_now()
    used = read_use({org_slug for org_slug, _ in named}, now - WINDOW)
    uses = []
    for quota in read_quotas(named):
        types = [use for use in used if use.org_slug == quota.org_slug and quota.job_type in {ALL_TYPES, use.job_type}]
        active, started = sum(use.active for use in types), sum(use.started for use in types)
        uses.append(QuotaUse(quota, active, started, quota.next_start_at(now)))
    return uses


class TypeUse(NamedTuple):
    """The use of one organization and job type.

    Attributes:
        org_slug: The organization.
        job_type: The job type.
        active: The jobs that run.
        started: The jobs that started within the window, counted up to `MAX_STARTS`.
    """

    org_slug: str
    job_type: str
    active: int
    started: int


def read_use(organizations: Collection[str], since: datetime) -> list[TypeUse]:
    """Return the running jobs and the starts since a time, by organization and job type, with one statement."""
    values: dict[str, Any] = {
        "organizations": list(organizations),
        "types": list(JOB_TYPES),
        "since": since,
        "max_starts": MAX_STARTS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_sql(), values)
        return [
            TypeUse(org_slug, job_type, int(active), int(started)) for org_slug, job_type, active, started in cursor
        ]


def waiting_counts(organizations: Collection[str]) -> dict[str, int]:
    """Return how many jobs of each organization wait, counted up to `MAX_WAITING` + 1, with one statement."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITING, {"organizations": list(organizations), "bound": MAX_WAITING + 1})
        return dict(cursor.fetchall())


@cache
def _sql() -> str:
    return (Path(__file__).parent / "sql" / "quota_use.sql").read_text()
