"""The event history of every job, and the actions of operators. A trigger keeps both append-only."""

from django.db import models
from django.db.models import Q

from runtime_jobs.db_functions import FeedStamp, TransactionId
from runtime_jobs.identifiers import ID_LENGTH, new_event_id
from runtime_jobs.models.jobs import Job
from runtime_jobs.states import FINAL_STATES


class JobEventQuerySet(models.QuerySet["JobEvent"]):
    """Filters of events."""

    def of(self, job_ulid: str) -> "JobEventQuerySet":
        return self.filter(job_id=job_ulid).order_by("seq")


class JobEvent(models.Model):
    """One event of a job, written in the transaction of the change. `seq` is the order; hashes chain the rows."""

    id = models.BigAutoField(primary_key=True)
    event_ulid = models.CharField(max_length=ID_LENGTH, default=new_event_id)  # no query finds a row by it
    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.PROTECT,
        related_name="events",
        db_index=False,
        db_constraint=False,  # checked by the audit
    )
    seq = models.BigIntegerField()
    event_type = models.CharField(max_length=40)
    actor_kind = models.CharField(max_length=20)
    actor_id = models.CharField(max_length=200)
    payload_json = models.JSONField(default=dict)
    created_at = models.DateTimeField()

    xid = TransactionId(db_default=FeedStamp())
    org_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    correlation_id = models.CharField(max_length=64)
    worker_id = models.CharField(max_length=ID_LENGTH, null=True)
    from_state = models.CharField(max_length=20, null=True)
    to_state = models.CharField(max_length=20, null=True)
    fence = models.BigIntegerField()
    prev_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    objects = JobEventQuerySet.as_manager()

    class Meta:
        db_table = "runtime_job_events"
        constraints = [
            models.UniqueConstraint(fields=["job", "seq"], name="one_event_per_seq"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(to_state__in=FINAL_STATES), name="one_final_event_per_job"
            ),
        ]
        # For feeds over all jobs: by stamp, because a lower id can commit later than a higher one.
        indexes = [models.Index(fields=["xid", "id"], name="events_by_transaction")]

    def __str__(self) -> str:
        return f"{self.event_type} #{self.seq}"


class OperatorEvent(models.Model):
    """An action on a worker, a token, a limit or a tenant: before, after, reason, source IP.

    Attributes:
        org_slug: The organization that the action concerns, which may read it. Null: the whole installation.
        job_type: The job type that the action concerns. Null: no single one.
        xid: The position in the feeds. 0 for rows that are older than the column.
    """

    id = models.BigAutoField(primary_key=True)
    event_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_event_id)
    action = models.CharField(max_length=60)
    actor = models.CharField(max_length=200)
    target = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.TextField(blank=True)
    source_address = models.GenericIPAddressField("source IP", null=True)
    created_at = models.DateTimeField()
    org_slug = models.CharField(max_length=63, null=True)
    job_type = models.CharField(max_length=50, null=True)
    xid = TransactionId(db_default=FeedStamp(), editable=False)

    class Meta:
        db_table = "operator_events"
        verbose_name = "operator action"
        indexes = [
            # The list in the admin, newest first.
            models.Index(fields=["-created_at"], name="operator_events_newest"),
            # The feeds, beside the events of jobs.
            models.Index(fields=["xid", "id"], name="operator_events_by_stamp"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target} by {self.actor}"
