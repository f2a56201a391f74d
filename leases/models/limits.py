"""Limits of jobs: concurrency, starts per hour, pauses.

A concurrency of N is N slot rows: a job needs one to run, so the limit cannot be exceeded. A rate is a token bucket.
"""

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Count, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

# The largest values that clients may set. Each job of a concurrency is a row.
MAX_ACTIVE = 10_000
MAX_PER_HOUR = 1_000_000


class LimitKind(models.TextChoices):
    """The purpose of a limit."""

    ORGANIZATION = "organization"  # concurrency, set by an operator
    PLAN = "plan"  # concurrency of the organization's plan
    PROJECT = "project"  # concurrency of one project
    EMERGENCY = "emergency"  # concurrency of jobs that skip the queue; other limits do not stop them
    SOURCE_ADDRESS = "source_address"  # concurrency of one source IP, for organizations without an owner
    CONCURRENCY = "concurrency"  # concurrency of one concurrency key
    RATE = "rate"  # starts per hour
    PAUSE = "pause"  # no start until it is resumed or expires
    THROTTLE = "throttle"  # a temporary rate
    BREAKER = "breaker"  # none while it is open; one probe while it is half-open


class LimitScope(models.TextChoices):
    """The jobs that a limit applies to. `key` names one member of the scope."""

    ORGANIZATION = "organization"  # of one organization; key: a job type, or * for all
    PROJECT = "project"  # key: its slug
    ADDRESS = "address"  # no organization; key: the address
    KEY = "key"  # of one organization; key: the concurrency key
    POOL = "pool"  # no organization; key: the pool's slug
    JOB_TYPE = "job_type"  # no organization; key: the type


# Queues and lanes list the limits of these scopes. Each claim looks up the others.
QUEUE_SCOPES = (LimitScope.ORGANIZATION,)
LANE_SCOPES = (LimitScope.PROJECT, LimitScope.ADDRESS, LimitScope.KEY)
TEMPORARY_KINDS = (LimitKind.PAUSE, LimitKind.THROTTLE)


class LimitQuerySet(models.QuerySet["Limit"]):
    """Annotations of limits."""

    def counted(self) -> "LimitQuerySet":
        """Annotate each limit with `running`, the number of jobs in its slots."""
        taken = LimitSlot.objects.filter(limit_id=OuterRef("pk"), job_id__isnull=False).order_by().values("limit_id")
        return self.annotate(running=Coalesce(Subquery(taken.annotate(count=Count("*")).values("count")), 0))


class Limit(models.Model):
    """Either a concurrency (`max_active`) or a rate (`per_hour` with a `burst`).

    Attributes:
        waiting: A queue or lane is blocked by this limit.
        binds_below: Jobs of this priority or a higher one are counted, not stopped.
        one_shot: The slot is assigned once.
        spent_until: The time at which the token bucket is full again.
    """

    id = models.AutoField(primary_key=True)  # an advisory lock has 32 bits for the id
    kind = models.CharField(max_length=20, choices=LimitKind.choices)
    scope = models.CharField(max_length=20, choices=LimitScope.choices, default=LimitScope.ORGANIZATION)
    org_slug = models.CharField(max_length=63, blank=True)
    key = models.CharField(max_length=200)
    max_active = models.PositiveIntegerField(null=True)
    per_hour = models.PositiveIntegerField(null=True)
    burst = models.PositiveIntegerField(null=True)
    spent_until = models.DateTimeField(null=True)
    binds_below = models.IntegerField(null=True)
    one_shot = models.BooleanField(default=False)
    until = models.DateTimeField(null=True, help_text="Expiry: from then on the limit has no effect.")
    waiting = models.BooleanField(default=False)
    note = models.CharField(max_length=1000, blank=True)
    set_by = models.CharField(max_length=200, blank=True)
    set_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1, help_text="Rises with every change; the API's ETag.")

    objects = LimitQuerySet.as_manager()

    class Meta:
        db_table = "lane_limits"
        constraints = [
            models.UniqueConstraint(fields=["scope", "org_slug", "key", "kind"], name="one_limit"),
            models.CheckConstraint(
                name="limit_of_one_sort",
                condition=Q(max_active__isnull=False, per_hour__isnull=True)
                | Q(max_active__isnull=True, per_hour__gt=0, burst__gt=0),
            ),
        ]
        indexes = [
            models.Index(fields=["until"], name="limits_for_a_while", condition=Q(until__isnull=False)),
            # For the metrics, each second: the limits that block jobs.
            models.Index(fields=["id"], name="limits_waited_for", condition=Q(waiting=True)),
        ]

    def __str__(self) -> str:
        whose = "/".join(part for part in (self.org_slug, self.key) if part not in {"", "*"})
        return f"{self.kind} of {self.scope} {whose}".replace("_", " ")

    @property
    def is_an_operators(self) -> bool:
        return self.set_by.startswith("operator:")

    @property
    def next_start_at(self) -> datetime | None:
        """When the token bucket has a start again; None where there is no bucket, or it was never used."""
        if self.per_hour is None or self.burst is None or self.spent_until is None:
            return None
        return self.spent_until - (self.burst - 1) * timedelta(hours=1) / self.per_hour


class LimitSlot(models.Model):
    """The slot of one running job under a limit.

    A `retired` slot is not assigned again. The limit was lowered, or counts the job without stopping it (`n` < 0).
    """

    limit_id = models.IntegerField()
    n = models.BigIntegerField()
    job_id = models.BigIntegerField(null=True)
    retired = models.BooleanField(default=False)

    class Meta:
        db_table = "lane_limit_slots"
        constraints = [models.UniqueConstraint(fields=["limit_id", "n"], name="one_limit_slot")]
        indexes = [
            models.Index(
                fields=["limit_id", "n"], name="limit_slots_free", condition=Q(job_id__isnull=True, retired=False)
            ),
            models.Index(fields=["job_id"], name="limit_slots_of_job", condition=Q(job_id__isnull=False)),
            models.Index(fields=["limit_id"], name="limit_slots_retired", condition=Q(retired=True)),
        ]

    def __str__(self) -> str:
        return f"{self.limit_id}/{self.n}"
