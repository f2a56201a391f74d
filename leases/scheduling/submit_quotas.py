"""Submit quotas: how many jobs of an organization may wait, and how many it may submit in a minute."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from django.db import DatabaseError, connection, transaction

from runtime_jobs.db_errors import sqlstate_of
from runtime_jobs.errors import LifecycleError, QueueFull, SubmitRateExceeded
from runtime_jobs.models import Organization, Plan
from runtime_jobs.prepared_queries import Sql, column_list

_SHORT = "QT001"  # the SQLSTATE of take_submit_quota
_ROUNDING = 0.000001  # as in bucket_tokens


class QuotaChanged(Exception):
    """A transaction needs more of a quota than its row has.

    The transaction is rolled back, the quota is recounted, and the transaction is repeated.
    """

    def __init__(self, org_slug: str) -> None:
        super().__init__(org_slug)
        self.org_slug = org_slug


@dataclass(frozen=True)
class QuotaTerms:
    """The submit limits of a plan. None is no limit."""

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
    """New waiting jobs of one organization in a transaction.

    Without `terms` the jobs count and are never refused.
    """

    jobs: int = 0
    terms: QuotaTerms | None = None

    def to_take(self, org_slug: str) -> dict[str, Any]:
        """Return the arguments of `take_submit_quota` by which these jobs are taken from the quota."""
        terms = self.terms or QuotaTerms(None, None, 0)
        return {"org_slug": org_slug, "jobs": self.jobs, "is_enforced": self.terms is not None, **vars(terms)}


@dataclass
class RemainingQuota:
    """The rest of an organization's quota, as one transaction read it without a lock.

    The row decides at the end of the transaction (`take_submit_quota`); this spares a refused submit all writes.
    `counted_for`, `room`: as in the row, None without one. `recount_in`, `full_in`: seconds until the next recount may
    be made and until the bucket of the rate is full again, negative in the past.
    """

    org_slug: str
    terms: QuotaTerms
    counted_for: int | None
    room: int | None
    recount_in: float | None
    full_in: float | None
    recounted: bool = False
    taken: int = 0

    def take(self, jobs: int = 1) -> None:
        """Reserve room for `jobs` more jobs.

        Raises:
            QuotaChanged: The row is missing, out of date, or due to be recounted.
            QueueFull: The organization has as many waiting jobs as its plan allows.
            SubmitRateExceeded: The organization submits faster than its plan allows.
        """
        requested = self.taken + jobs
        if self.terms.per_minute is not None:
            self._require_rate(requested, self.terms.per_minute)
        if self.terms.is_limited:
            self._require_room(requested)
        self.taken = requested

    def refusal(self) -> LifecycleError | None:
        """Return the error that another job would be refused with; None if none, or if a recount would decide."""
        try:
            self.take()
        except LifecycleError as error:
            return error
        except QuotaChanged:
            return None
        return None

    def _require_room(self, requested: int) -> None:
        limit = self.terms.max_queued
        if self.room is None or self.counted_for != limit:
            if not self.recounted:
                raise QuotaChanged(self.org_slug)
            return  # changed once more: the end of the transaction decides
        if limit is None or self.room >= requested:
            return
        pause = self.recount_in or 0
        if not self.recounted and pause <= 0:
            raise QuotaChanged(self.org_slug)
        raise QueueFull(
            f"The plan allows at most {limit} waiting jobs. Submit more when some have started or ended.",
            limit=limit,
            current=limit - self.room + self.taken,
            retry_after=_seconds(pause),
        )

    def _require_rate(self, requested: int, per_minute: int) -> None:
        burst = self.terms.burst
        spent = max(0, self.full_in or 0) * per_minute / 60
        if requested <= burst - spent + _ROUNDING:
            return
        raise SubmitRateExceeded(
            f"The plan allows {per_minute} submitted jobs a minute, at most {burst} at once. Submit more slowly.",
            limit=per_minute,
            burst=burst,
            current=min(burst, math.ceil(spent - _ROUNDING) + self.taken),
            retry_after=_seconds((spent + requested - burst) / per_minute * 60),
        )


@dataclass(frozen=True)
class QuotaColumns:
    """Columns of a query that joins `submit_quotas` as `quota`.

    Times are durations in seconds: numbers are read faster than times.
    """

    quota_counted_for: Annotated[int | None, Sql("quota.max_queued")]
    quota_room: Annotated[int | None, Sql("quota.room")]
    quota_recount_in: Annotated[float | None, Sql("extract(epoch FROM quota.recount_at - clock_timestamp())::float8")]
    quota_full_in: Annotated[float | None, Sql("extract(epoch FROM quota.spent_until - clock_timestamp())::float8")]


def remaining_quota_in(organization: Organization, row: QuotaColumns, *, recounted: bool = False) -> RemainingQuota:
    """Return the room of an organization by the columns of its quota.

    Args:
        organization: The organization, read with its plan.
        row: Its quota, read in the same transaction.
        recounted: This call has recounted the quota already.
    """
    return RemainingQuota(
        organization.slug,
        QuotaTerms.of(organization.plan),
        counted_for=row.quota_counted_for,
        room=row.quota_room,
        recount_in=row.quota_recount_in,
        full_in=row.quota_full_in,
        recounted=recounted,
    )


@contextmanager
def short_quotas() -> Iterator[None]:
    """Raise QuotaChanged for a quota that `take_submit_quota` finds short inside."""
    try:
        yield
    except DatabaseError as error:
        if sqlstate_of(error) == _SHORT:
            raise QuotaChanged(str(error.__cause__.diag.message_primary)) from error  # type: ignore[union-attr]
        raise


def recount(org_slug: str) -> None:
    """Set the organization's room to what its plan leaves beside the jobs that wait, in a transaction of its own.

    Waits for submits of the organization that are about to commit. Does nothing before the time of the next recount.
    """
    with transaction.atomic(durable=True):
        create_quota(org_slug)


def create_quota(org_slug: str) -> None:
    """Count the quota of an organization within the caller's transaction, which has created the organization.

    A submit in the same transaction would find no quota, and `recount` would not find the organization.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT recount_submit_quota(o.slug, p.max_queued)"
            "  FROM runtime_jobs_organization o JOIN runtime_jobs_plan p ON p.id = o.plan_id WHERE o.slug = %s",
            [org_slug],
        )


def remaining_quota(organization: Organization) -> RemainingQuota:
    """Return the current quota of an organization, for display."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {column_list(QuotaColumns)}"  # noqa: S608 our own columns
            " FROM (SELECT) nothing LEFT JOIN submit_quotas quota ON quota.org_slug = %s",
            [organization.slug],
        )
        return RemainingQuota(organization.slug, QuotaTerms.of(organization.plan), *cursor.fetchone())


def waiting_jobs(org_slug: str) -> int:
    """Count the jobs of the organization that wait. Reads each of them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count_waiting_jobs(%s)", [org_slug])
        return int(cursor.fetchone()[0])


def _seconds(span: float) -> int:
    return max(1, math.ceil(span))
