"""Quotas of document 004: the limits of concurrency, rate and emergencies of one organization and job type."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget

KINDS = (LimitKind.ORGANIZATION, LimitKind.RATE, LimitKind.EMERGENCY)
UNSET = "0"  # the version of a quota without limits


@dataclass(frozen=True)
class Quota:
    """A quota. It exists for each organization and job type, whether or not one of its limits is set.

    Attributes:
        org_slug: The organization.
        job_type: The job type, or `*` for all types together.
        concurrency: The limit of running jobs, or None.
        rate: The limit of starts per hour, or None.
        emergency: The limit of running emergency jobs, or None. Only the quota of all types has one.
    """

    org_slug: str
    job_type: str
    concurrency: Limit | None = None
    rate: Limit | None = None
    emergency: Limit | None = None

    @property
    def target(self) -> LimitTarget:
        """The jobs that the quota applies to."""
        return LimitTarget.of_organization(self.org_slug, self.job_type)

    @property
    def limits(self) -> dict[LimitKind, Limit]:
        """The limits that are set."""
        found = zip(KINDS, (self.concurrency, self.rate, self.emergency), strict=True)
        return {kind: limit for kind, limit in found if limit is not None}

    @property
    def version(self) -> str:
        """The version, which changes with each limit. No two states share one, because no key of a row is reused."""
        return "-".join(f"{limit.pk}.{limit.version}" for limit in self.limits.values()) or UNSET

    @property
    def newest(self) -> Limit | None:
        """The limit that was changed last, or None if none is set."""
        dated = [limit for limit in self.limits.values() if limit.set_at is not None]
        return max(dated, key=lambda limit: limit.set_at, default=None)  # type: ignore[arg-type,return-value]

    def next_start_at(self, now: datetime) -> datetime | None:
        """Return when the rate allows the next start. None: now, or only the end of a job lets another one start."""
        due = self.rate.next_start_at if self.rate else None
        return due if due and due > now else None


def read_quota(org_slug: str, job_type: str) -> Quota:
    """Return the current quota of an organization and job type."""
    return read_quotas([(org_slug, job_type)])[0]


def read_quotas(named: Collection[tuple[str, str]]) -> list[Quota]:
    """Return the quotas of these organizations and job types in this order, read with one statement."""
    if not named:
        return []
    found: dict[tuple[str, str], dict[str, Limit]] = defaultdict(dict)
    names = Q(org_slug__in={org_slug for org_slug, _ in named}, key__in={job_type for _, job_type in named})
    for limit in Limit.objects.filter(names, scope=LimitScope.ORGANIZATION, kind__in=KINDS):
        found[limit.org_slug, limit.key][limit.kind] = limit
    return [Quota(*name, *(found[name].get(kind) for kind in KINDS)) for name in named]
