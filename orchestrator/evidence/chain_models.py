"""The chains of evidence in the database: links of operator events, and signed checkpoints of ended jobs."""

from typing import Final

from django.db import models
from django.db.models import Q

from runtime_jobs.db_functions import TransactionId
from runtime_jobs.identifiers import ID_LENGTH

INSTALLATION: Final = ""  # the chain of the events that concern no organization
DIGEST_LENGTH: Final = 64


class EvidencePosition(models.Model):
    """The place up to which a task has read a table of events, in the order of the feeds. Its lock serializes the task.

    Attributes:
        name: The task.
        stamp: The stamp of the last event that was read.
        event_id: The key of that event.
        passed_at: The start of the last pass that reached the oldest open transaction.
        requested_at: The last request of a pass. Requested and not passed since: the next one is due now.
    """

    name = models.CharField(max_length=20, primary_key=True)
    stamp = TransactionId()
    event_id = models.BigIntegerField()
    passed_at = models.DateTimeField(null=True)
    requested_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "evidence_positions"

    def __str__(self) -> str:
        return f"{self.name} at {self.stamp}/{self.event_id}"


class EvidenceChain(models.Model):
    """The ends of the chains of one organization. The audit computes all of it again, and trusts nothing of it.

    Attributes:
        org_slug: The organization; `INSTALLATION`: what concerns none.
        events: The number of operator events in the chain.
        head: The hash of the last link, empty without one.
        deleted_events: The number of events at the beginning of the chain that retention has deleted.
        deleted_head: The hash of the last deleted link.
        checkpoints: The number of checkpoints.
        checkpoint_sha256: The digest of the last checkpoint, empty without one.
        checkpointed_events: The number of events that the last checkpoint covers.
    """

    org_slug = models.CharField(max_length=63, primary_key=True)
    events = models.BigIntegerField(default=0)
    head = models.CharField(max_length=DIGEST_LENGTH, blank=True)
    deleted_events = models.BigIntegerField(default=0)
    deleted_head = models.CharField(max_length=DIGEST_LENGTH, blank=True)
    checkpoints = models.BigIntegerField(default=0)
    checkpoint_sha256 = models.CharField(max_length=DIGEST_LENGTH, blank=True)
    checkpointed_events = models.BigIntegerField(default=0)

    class Meta:
        db_table = "evidence_chains"

    def __str__(self) -> str:
        return self.org_slug or "(installation)"


class OperatorEventLink(models.Model):
    """The place of an operator event in the chain of its organization. The scheduler process writes it.

    Attributes:
        event_id: The key of the event.
        org_slug: The organization, or `INSTALLATION`.
        seq: The number in the chain: 1, 2, 3 …
        prev_hash: The hash of the link before, empty for the first one.
        hash: The SHA-256 of the canonical event with `seq` and `prev_hash`.
    """

    event_id = models.BigIntegerField(primary_key=True)
    org_slug = models.CharField(max_length=63)
    seq = models.BigIntegerField()
    prev_hash = models.CharField(max_length=DIGEST_LENGTH, blank=True)
    hash = models.CharField(max_length=DIGEST_LENGTH)

    class Meta:
        db_table = "operator_event_links"
        constraints = [models.UniqueConstraint(fields=["org_slug", "seq"], name="one_operator_event_per_seq")]

    def __str__(self) -> str:
        return f"{self.org_slug} #{self.seq}"


class Checkpoint(models.Model):
    """A signed statement about the jobs of an organization that ended since its checkpoint before.

    Attributes:
        number: The number within the organization: 1, 2, 3 …
        sha256: The SHA-256 of the signed payload.
        envelope: The DSSE envelope. Its payload is the statement, `evidence.checkpoints.statement_of`.
        filed_at: When the envelope was written into CHECKPOINT_DIR.
    """

    id = models.BigAutoField(primary_key=True)
    org_slug = models.CharField(max_length=63, blank=True)
    number = models.BigIntegerField()
    created_at = models.DateTimeField()
    sha256 = models.CharField(max_length=DIGEST_LENGTH)
    envelope = models.JSONField()
    filed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "evidence_checkpoints"
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["org_slug", "number"], name="one_checkpoint_per_number")]
        indexes = [models.Index(fields=["id"], name="checkpoints_to_file", condition=Q(filed_at=None))]

    def __str__(self) -> str:
        return f"{self.org_slug} #{self.number}"


class CheckpointJob(models.Model):
    """An ended job that a checkpoint covers. The row stays when retention deletes the job.

    Attributes:
        job_ulid: The attempt.
        seq: The number of its events.
        head: The hash of its final event.
        deleted_at: When retention deleted the job with its history.
    """

    job_ulid = models.CharField(max_length=ID_LENGTH, primary_key=True)
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="jobs", db_constraint=False)
    seq = models.BigIntegerField()
    head = models.CharField(max_length=DIGEST_LENGTH)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "evidence_checkpoint_jobs"

    def __str__(self) -> str:
        return self.job_ulid
