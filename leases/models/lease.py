"""The lease: the right of one worker to execute and report on a job."""

from datetime import datetime

from django.db import models
from django.db.models import Case, Q, Value, When

from leases.states import OPEN, LeaseState
from runtime_jobs.identifiers import ID_LENGTH, fingerprint, new_lease_id
from runtime_jobs.models import Job
from workers.models import Worker


class LeaseQuerySet(models.QuerySet["Lease"]):
    """Filters of leases."""

    def open(self) -> "LeaseQuerySet":
        """A trigger keeps the state and the end of a lease consistent, so the index of open leases serves this."""
        return self.filter(completed_at__isnull=True)


class Lease(models.Model):
    """A lease of a job. It is live while `expires_at` is later than the database's clock; at equality it has expired.

    `lease_ulid` is a capability: no log line, event, list or error text contains it. Its fingerprint may be displayed.
    """

    id = models.BigAutoField(primary_key=True)
    lease_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_lease_id, editable=False)
    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.PROTECT,
        related_name="leases",
        db_index=False,
        db_constraint=False,  # checked by the audit
    )
    worker = models.ForeignKey(
        Worker,
        to_field="worker_id",
        on_delete=models.PROTECT,
        related_name="leases",
        db_index=False,
        db_constraint=False,  # checked by the audit
    )
    pool = models.CharField(max_length=63)
    state = models.CharField(max_length=20, choices=LeaseState.choices, editable=False)
    status = models.GeneratedField(
        expression=Case(When(state__in=OPEN, then=Value("open")), default="state"),
        output_field=models.CharField(max_length=20),
        db_persist=True,
    )
    fence = models.BigIntegerField()
    session = models.CharField(max_length=26, blank=True)
    ttl_seconds = models.PositiveIntegerField()
    heartbeat_interval_seconds = models.PositiveIntegerField()
    acknowledge_within_seconds = models.PositiveIntegerField()
    leased_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    last_heartbeat_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)
    ended_reason = models.CharField(max_length=40, null=True)
    final_digest = models.CharField(max_length=64, null=True)

    objects = LeaseQuerySet.as_manager()

    # The columns that operations change after the insert.
    CHANGED_FIELDS = (
        *("state", "acknowledged_at", "last_heartbeat_at", "expires_at", "completed_at", "ended_reason"),
        "final_digest",
    )

    class Meta:
        db_table = "runtime_worker_leases"
        constraints = [
            # Also the index of all open leases. By the end and not by the state or the expiry: an acknowledgement and a
            # renewal must stay HOT updates.
            models.UniqueConstraint(
                fields=["job"], condition=Q(completed_at__isnull=True), name="one_open_lease_per_job"
            ),
            models.UniqueConstraint(fields=["job", "fence"], name="one_lease_per_fence"),
        ]
        indexes = [
            # The claim: the open leases of a worker. Its page in the admin: all of them (document 000).
            models.Index(fields=["worker", "status", "id"], name="leases_of_worker"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.fence} ({fingerprint(self.lease_ulid)})"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def is_live(self, now: datetime) -> bool:
        return self.is_open and self.expires_at > now
