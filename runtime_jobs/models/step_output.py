"""The log of each step of a job besides its chunks: what is held back, what waits, and the object that has the whole.

The bytes of a log are the object of its `StepLog`, if there is one, and then the rows of `LogChunk`. A log only grows
at its end, so the number of a byte in it never changes.
"""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runtime_jobs.identifiers import ID_LENGTH
from runtime_jobs.models.jobs import Job


class StepLog(models.Model):
    """The log of one step of a job.

    Chunks of workers of ours are stored as they come, and only the counters and the object are used. A log of a
    workflow job is masked: what arrives is numbered by the runner, and what is stored is numbered anew.

    Attributes:
        step: The index of the step.
        next_seq: The number of the next chunk in the order of the runner.
        skipped: Ranges of numbers, each `[first, after]`, that were left out and may still arrive.
        chunk_count: The number of chunks that were stored so far, which is the `seq` of the next one.
        stored_bytes: The length of the log.
        held: The suffix that may become a secret, sealed. Null if there is none.
        held_masked: Number of leading bytes of `held` that a mask of the log covers already.
        waiting_bytes: The size of the chunks that wait for an earlier one.
        waiting_count: The number of those chunks.
        open_line: The end of the log, if it may be the beginning of a workflow command.
        annotation_count: The number of annotations.
        is_truncated: The log has reached its limit. Later chunks are dropped.
        omitted_forms: The number of spellings of secrets that were not masked, because all exceed a limit.
        closed_at: The end of the step.
        closed_bytes: The length of the log when the step ended. Later chunks are added after it.
        object_key: The name of the object in the storage, or empty.
        object_bytes: The first bytes of the log, which are in the object and no longer in rows.
        attempts: The number of objects that were begun. Each has a name of its own, so none is overwritten.
        needs_finalizing: There may be bytes that are in rows and should be in an object.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.CASCADE,
        related_name="step_logs",
        db_index=False,
        db_constraint=False,  # checked by the audit
    )
    step = models.PositiveIntegerField()
    next_seq = models.BigIntegerField(default=0, db_default=0)
    skipped = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    chunk_count = models.BigIntegerField(default=0, db_default=0)
    stored_bytes = models.BigIntegerField(default=0, db_default=0)
    held = models.BinaryField(null=True)
    held_masked = models.IntegerField(default=0, db_default=0)
    waiting_bytes = models.BigIntegerField(default=0, db_default=0)
    waiting_count = models.IntegerField(default=0, db_default=0)
    open_line = models.BinaryField(default=b"", db_default=b"")
    annotation_count = models.IntegerField(default=0, db_default=0)
    is_truncated = models.BooleanField(default=False, db_default=False)
    omitted_forms = models.IntegerField(default=0, db_default=0)
    closed_at = models.DateTimeField(null=True)
    closed_bytes = models.BigIntegerField(null=True)
    object_key = models.CharField(max_length=1024, default="", db_default="")
    object_bytes = models.BigIntegerField(default=0, db_default=0)
    attempts = models.IntegerField(default=0, db_default=0)
    needs_finalizing = models.BooleanField(default=False, db_default=False)

    class Meta:
        db_table = "step_logs"
        constraints = [
            models.UniqueConstraint(fields=["job", "step"], name="one_log_per_step"),
            models.CheckConstraint(
                name="step_log_object",
                condition=Q(object_key="", object_bytes=0) | (~Q(object_key="") & Q(attempts__gte=1)),
            ),
            models.CheckConstraint(
                name="step_log_held", condition=Q(held__isnull=False, held_masked__gte=0) | Q(held_masked=0)
            ),
        ]
        indexes = [
            models.Index(fields=["id"], condition=Q(needs_finalizing=True), name="step_logs_to_finalize"),
        ]

    def __str__(self) -> str:
        return f"log of step {self.step} of {self.job_id}"

    @property
    def sealing_context(self) -> str:
        """The place of the bytes that are held back, with which they are sealed."""
        return f"job/{self.job_id}/{self.step}"


class WaitingLogChunk(models.Model):
    """A chunk that arrived before an earlier one. It is not masked yet, and therefore sealed."""

    step_log = models.ForeignKey(StepLog, on_delete=models.CASCADE, related_name="waiting", db_index=False)
    seq = models.BigIntegerField()
    size = models.IntegerField()
    sealed = models.BinaryField()

    class Meta:
        db_table = "step_log_waiting_chunks"
        constraints = [models.UniqueConstraint(fields=["step_log", "seq"], name="one_waiting_chunk_per_seq")]

    def __str__(self) -> str:
        return f"chunk {self.seq} of log {self.step_log_id}"


class StepAnnotation(models.Model):
    """A notice, warning or error that a step has printed as a workflow command. Its texts are masked."""

    class Level(models.TextChoices):
        NOTICE = "notice"
        WARNING = "warning"
        ERROR = "error"

    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.CASCADE,
        related_name="annotations",
        db_index=False,
        db_constraint=False,  # checked by the audit
    )
    step = models.PositiveIntegerField()
    number = models.PositiveIntegerField()
    level = models.CharField(max_length=10, choices=Level.choices)
    message = models.TextField(blank=True)
    title = models.CharField(max_length=255, blank=True)
    path = models.CharField(max_length=1024, blank=True)
    start_line = models.PositiveIntegerField(null=True)
    end_line = models.PositiveIntegerField(null=True)
    start_column = models.PositiveIntegerField(null=True)
    end_column = models.PositiveIntegerField(null=True)

    class Meta:
        db_table = "step_annotations"
        constraints = [models.UniqueConstraint(fields=["job", "step", "number"], name="one_annotation_per_number")]

    def __str__(self) -> str:
        return f"{self.level} {self.number} of step {self.step} of {self.job_id}"


class FollowedJob(models.Model):
    """A job whose log is followed in some process, which wants notifications. The table is not logged.

    Its rows are hints: a follower also polls, so a crash of PostgreSQL may empty the table.
    """

    job_ulid = models.CharField(max_length=ID_LENGTH, primary_key=True)
    until = models.DateTimeField()

    class Meta:
        db_table = "followed_jobs"

    def __str__(self) -> str:
        return self.job_ulid


class DiscardedLogObject(models.Model):
    """An object of the log storage that no log names any more, or that an interrupted attempt may have left."""

    name = models.CharField(max_length=1024, primary_key=True)
    discarded_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "discarded_log_objects"

    def __str__(self) -> str:
        return self.name
