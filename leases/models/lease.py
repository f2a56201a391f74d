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
        return self.filter(state__in=OPEN)


class Lease(models.Model):
    """A lease of a job. It is live while `expires_at` is later than the database's clock; at equality it has expired.

    `lease_ulid` is a capability: no log line, event, list or error text contains it. Its fingerprint may be displayed.
    """

    id = models.BigAutoField(primary_key=True)
    lease_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_lease_id, editable=False)
    job = models.ForeignKey(
        Job, to_field="job_ulid", db_column="job_ulid", on_delete=models.PROTECT, related_name="leases", db_index=False
    )
    worker = models.ForeignKey(
        Worker, to_field="worker_id", on_delete=models.PROTECT, related_name="leases", db_index=False
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

    class Meta:
        db_table = "runtime_worker_leases"
        constraints = [
            models.UniqueConstraint(fields=["job"], condition=Q(state__in=OPEN), name="one_open_lease_per_job"),
            models.UniqueConstraint(fields=["job", "fence"], name="one_lease_per_fence"),
            models.CheckConstraint(
                name="lease_open_or_completed",
                condition=(Q(state__in=OPEN) & Q(completed_at__isnull=True))
                | (~Q(state__in=OPEN) & Q(completed_at__isnull=False)),
            ),
            models.CheckConstraint(name="lease_state_known", condition=Q(state__in=LeaseState.values)),
            models.CheckConstraint(
                name="lease_active_is_acknowledged",
                condition=~Q(state=LeaseState.ACTIVE) | Q(acknowledged_at__isnull=False),
            ),
        ]
        indexes = [
            # Document 000: the leases of a job, of a worker.
            models.Index(fields=["job", "status"], name="leases_of_job"),
            models.Index(fields=["worker", "status"], name="leases_of_worker"),
            # For orchestrator.maintenance.leases: the open leases. Not by expires_at: renewals must stay HOT updates.
            models.Index(fields=["state"], name="open_leases", condition=Q(state__in=OPEN)),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.fence} ({fingerprint(self.lease_ulid)})"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def is_live(self, now: datetime) -> bool:
        return self.is_open and self.expires_at > now
