"""Submit quotas: how many jobs of an organization may wait, and how many it may submit in a minute."""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection, transaction

from leases.models import SubmitQuota
from runtime_jobs.errors import LifecycleError, QueueFull, SubmitRateExceeded
from runtime_jobs.models import Organization, Plan

_MINUTE = timedelta(minutes=1)
_ROUNDING = 0.000001  # as in lanes_tokens


class QuotaChanged(Exception):
    """A transaction needs more of a quota than its row has. It is rolled back, the quota is recounted, and the
    transaction is tried again."""

    def __init__(self, org_slug: str) -> None:
        super().__init__(org_slug)
        self.org_slug = org_slug


@dataclass(frozen=True)
class QuotaTerms:
    """What a plan allows. None is no limit."""

    max_queued: int | None
    per_minute: int | None
    burst: int

    @classmethod
    def of(cls, plan: Plan) -> "QuotaTerms":
        return cls(plan.max_queued, plan.submits_per_minute, plan.submit_burst)

    @property
    def is_limited(self) -> bool:
        return self.max_queued is not None or self.per_minute is not None


@dataclass
class Arrivals:
    """Jobs of one organization that a transaction adds to those that wait. `terms` None: they count, and are never
    refused."""

    jobs: int = 0
    terms: QuotaTerms | None = None


@dataclass
class Room:
    """What is left of an organization's quota, as one transaction read it without a lock.

    The row decides at the end of the transaction (`submit_quota_take`); this spares a refused submit all writes."""

    org_slug: str
    terms: QuotaTerms
    row: SubmitQuota | None
    read_at: datetime
    recounted: bool = False
    taken: int = field(default=0, init=False)

    def take(self, jobs: int = 1) -> None:
        """Reserve room for `jobs` more jobs.

        Raises:
            QuotaChanged: The row is missing, out of date, or due to be recounted.
            QueueFull: The organization has as many waiting jobs as its plan allows.
            SubmitRateExceeded: The organization submits faster than its plan allows."""
        if self.terms.is_limited:
            wanted = self.taken + jobs
            self._require_rate(wanted)
            self._require_room(wanted)
        self.taken += jobs

    def refusal(self, jobs: int = 1) -> LifecycleError | None:
        """Why `jobs` jobs would be refused now. None if they would not be, or if a recount would decide."""
        try:
            Room(self.org_slug, self.terms, self.row, self.read_at).take(jobs)
        except LifecycleError as error:
            return error
        except QuotaChanged:
            return None
        return None

    def _require_room(self, wanted: int) -> None:
        limit, row = self.terms.max_queued, self.row
        if row is None or row.max_queued != limit:
            if not self.recounted:
                raise QuotaChanged(self.org_slug)
            return  # changed once more: the end of the transaction decides
        if limit is None or row.room >= wanted:
            return
        if not self.recounted and (row.recount_at is None or row.recount_at <= self.read_at):
            raise QuotaChanged(self.org_slug)
        raise QueueFull(
            f"The plan allows at most {limit} waiting jobs. Submit more when some have started or ended.",
            limit=limit,
            current=limit - row.room + self.taken,
            retry_after=_seconds(row.recount_at - self.read_at if row.recount_at else timedelta()),
        )

    def _require_rate(self, wanted: int) -> None:
        per_minute, burst = self.terms.per_minute, self.terms.burst
        if per_minute is None:
            return
        owed = max(timedelta(), self.row.spent_until - self.read_at) if self.row and self.row.spent_until else timedelta()
        spent = owed / _MINUTE * per_minute
        if wanted <= burst - spent + _ROUNDING:
            return
        raise SubmitRateExceeded(
            f"The plan allows {per_minute} submitted jobs a minute, at most {burst} at once. Submit more slowly.",
            limit=per_minute,
            burst=burst,
            current=min(burst, math.ceil(spent - _ROUNDING) + self.taken),
            retry_after=_seconds((spent + wanted - burst) / per_minute * _MINUTE),
        )


def take(org_slug: str, arrivals: Arrivals) -> tuple[str, list[object]]:
    """The SQL expression that takes these jobs from the organization's quota, and its values."""
    terms = arrivals.terms or QuotaTerms(None, None, 0)
    values = [org_slug, arrivals.jobs, arrivals.terms is not None, terms.max_queued, terms.per_minute, terms.burst]
    return "submit_quota_take(%s, %s::integer, %s, %s::integer, %s::integer, %s::integer)", values


def recount(org_slug: str) -> None:
    """Set the organization's room to what its plan leaves beside the jobs that wait, in a transaction of its own.

    Waits for submits of the organization that are about to commit. Does nothing before the time of the next recount."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute(
            "SELECT submit_quota_recount(o.slug, p.max_queued)"
            "  FROM runtime_jobs_organization o JOIN runtime_jobs_plan p ON p.id = o.plan_id WHERE o.slug = %s",
            [org_slug],
        )


def room_of(organization: Organization, at: datetime) -> Room:
    """The quota of an organization as it is now, to be shown."""
    row = SubmitQuota.objects.filter(org_slug=organization.slug).first()
    return Room(organization.slug, QuotaTerms.of(organization.plan), row, at)


def waiting_jobs(org_slug: str) -> int:
    """Count the jobs of the organization that wait. Reads each of them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT submit_quota_waiting(%s)", [org_slug])
        return int(cursor.fetchone()[0])


def _seconds(span: timedelta) -> int:
    return max(1, math.ceil(span.total_seconds()))
