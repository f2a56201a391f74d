"""Lanes and queues, in which jobs wait.

Jobs that are equal to the scheduler share a lane. The lanes of one organization, priority and profile form a queue.
Claims choose among queues and lanes, never among jobs. So the cost of a claim does not grow with the waiting jobs.
The functions in `leases/sql` write these tables and document the locks.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from runtime_jobs.models.tenants import ISOLATION_CHOICES

EMPTY = 2**63 - 1  # `scan_from` of a lane without a waiting job


class LaneProfile(models.Model):
    """Requirements on a worker that runs the jobs of a queue. There are few profiles: each claim reads all."""

    job_type = models.CharField(max_length=50)
    requirements = ArrayField(models.CharField(max_length=63), default=list, help_text="Sorted.")
    least_isolation = models.CharField(max_length=20, choices=ISOLATION_CHOICES)

    class Meta:
        db_table = "lane_profiles"
        constraints = [
            models.UniqueConstraint(fields=["job_type", "least_isolation", "requirements"], name="one_lane_profile")
        ]

    def __str__(self) -> str:
        return f"{self.job_type} {self.requirements} {self.least_isolation}"


class LaneQueue(models.Model):
    """The lanes of one organization, priority and profile. A claim chooses the queue first, and so skips a full one.

    What changes with the jobs is in its `QueueHead`.
    """

    pool = models.CharField(max_length=63)
    profile_id = models.IntegerField()
    org_slug = models.CharField(max_length=63)
    priority = models.IntegerField()
    limits = ArrayField(models.IntegerField(), default=list)

    id = models.AutoField(primary_key=True)  # an advisory lock has 32 bits for the id

    class Meta:
        db_table = "lane_queues"
        constraints = [
            models.UniqueConstraint(fields=["pool", "profile_id", "org_slug", "priority"], name="one_lane_queue")
        ]
        indexes = [models.Index(fields=["org_slug", "pool"], name="lane_queues_of_organization")]

    def __str__(self) -> str:
        return f"{self.pool}/{self.org_slug} {self.priority}"


class Lane(models.Model):
    """Jobs that differ only by their age. What changes with them is in its `LaneHead`."""

    id = models.AutoField(primary_key=True)
    queue_id = models.IntegerField()
    project_slug = models.CharField(max_length=63)
    source_address = models.CharField(max_length=45, blank=True, help_text="Where its jobs are limited by it.")
    concurrency_key = models.CharField(max_length=200, blank=True)
    limits = ArrayField(models.IntegerField(), default=list)

    class Meta:
        db_table = "lanes"
        constraints = [
            models.UniqueConstraint(
                fields=["queue_id", "project_slug", "source_address", "concurrency_key"], name="one_lane"
            )
        ]

    def __str__(self) -> str:
        return f"lane {self.pk}"


class QueueHead(models.Model):
    """Where a queue stands among those to serve: one row a queue, written with almost every job.

    Attributes:
        version: A new number with each write, so that a reader finds the newest version first. See
            [decision 129](../../docs/adr/0129-heads-are-found-newest-first.md).
        generation: The part of the order in which the row is: see `LaneGeneration`.
        head_id: The oldest job that may be served, a hint for the order. Null: nothing to serve.
        tier: The priority and what aging adds. The highest tier is served first.
        rank: The order within a tier: age of the head or, in a pool that shares, service of the organization.
        served_at: The last turn in a pool that shares.
        blocked_by: The full limit that blocks the queue.
        eligible_at: When the queue is unblocked without an event.
    """

    pk = models.CompositePrimaryKey("queue_id", "version")
    queue_id = models.IntegerField()
    version = models.BigIntegerField(default=0)
    generation = models.IntegerField(default=0)
    pool = models.CharField(max_length=63)
    profile_id = models.IntegerField()
    head_id = models.BigIntegerField(null=True)
    head_at = models.DateTimeField(null=True)
    tier = models.IntegerField()
    rank = models.FloatField(default=0)
    served_at = models.DateTimeField(null=True)
    blocked_by = models.IntegerField(null=True)
    eligible_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "queue_heads"
        indexes = [
            models.Index(
                "pool",
                "profile_id",
                "generation",
                models.F("tier").desc(),
                "rank",
                "head_id",
                name="queue_heads_to_serve",
                condition=models.Q(head_id__isnull=False, blocked_by__isnull=True),
            ),
            # The least served organization: the floor of one that returns.
            models.Index(
                fields=["pool", "generation", "rank"],
                name="queue_heads_by_rank",
                condition=models.Q(head_id__isnull=False, blocked_by__isnull=True),
            ),
            models.Index(fields=["eligible_at"], name="queue_heads_due", condition=models.Q(eligible_at__isnull=False)),
            models.Index(
                fields=["blocked_by"], name="queue_heads_blocked", condition=models.Q(blocked_by__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"head of queue {self.queue_id}"


class LaneHead(models.Model):
    """Where a lane stands among those of its queue: one row a lane, written with almost every job.

    No job below the id `scan_from` waits here: a correctness condition. `version`, `generation`, `head_id`, `head_at`,
    `blocked_by` and `eligible_at`: as in the head of a queue.
    """

    pk = models.CompositePrimaryKey("lane_id", "version")
    lane_id = models.IntegerField()
    version = models.BigIntegerField(default=0)
    generation = models.IntegerField(default=0)
    queue_id = models.IntegerField()
    head_id = models.BigIntegerField(null=True)
    head_at = models.DateTimeField(null=True)
    scan_from = models.BigIntegerField(default=EMPTY)
    blocked_by = models.IntegerField(null=True)
    eligible_at = models.DateTimeField(null=True)
    idle_since = models.DateTimeField(null=True, help_text="Empty at least since then; see `prune_idle_lanes`.")

    class Meta:
        db_table = "lane_heads"
        indexes = [
            models.Index(
                fields=["queue_id", "generation", "head_at", "head_id"],
                name="lane_heads_to_serve",
                condition=models.Q(head_id__isnull=False, blocked_by__isnull=True),
            ),
            models.Index(
                fields=["blocked_by"], name="lane_heads_blocked", condition=models.Q(blocked_by__isnull=False)
            ),
            models.Index(fields=["eligible_at"], name="lane_heads_due", condition=models.Q(eligible_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"head of lane {self.lane_id}"


class LaneGeneration(models.Model):
    """A part of the order of heads. The newest row counts; without a row, generation 0 is the only one.

    Heads that can be served are written into the newest generation. Claims read the generations from `oldest` on.

    Attributes:
        number: The generation.
        oldest: The oldest generation in which a head may be.
        began_at: The last version before it began or, when heads have been moved into it, of those.
    """

    number = models.IntegerField(primary_key=True)
    oldest = models.IntegerField()
    began_at = models.BigIntegerField()

    class Meta:
        db_table = "lane_generations"

    def __str__(self) -> str:
        return f"generation {self.number}"


class LaneShare(models.Model):
    """The share of an organization in a `fair` pool (start-time fair queueing). A `fifo` pool has no rows.

    Of the queues of one tier, those of the organization with the lowest `served - lead` come first.

    Attributes:
        pool: The pool.
        org_slug: The organization.
        weight: The weight of its plan.
        served: The number of its claimed jobs, each divided by the weight at that time.
        lead: The head start of an organization that has returned to the pool, in the unit of `served`.
    """

    pool = models.CharField(max_length=63)
    org_slug = models.CharField(max_length=63)
    weight = models.PositiveIntegerField(default=1)
    served = models.FloatField(default=0)
    lead = models.FloatField(db_default=0)

    class Meta:
        db_table = "lane_shares"
        constraints = [models.UniqueConstraint(fields=["pool", "org_slug"], name="one_lane_share")]

    def __str__(self) -> str:
        return f"{self.pool}/{self.org_slug}: {self.served:g}"
