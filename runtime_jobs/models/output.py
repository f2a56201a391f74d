"""What a job printed, and a result that could not be handed over."""

from django.db import models

from runtime_jobs.models.jobs import Job


class LogChunk(models.Model):
    """Bytes of one step's output as they came, numbered 0, 1, 2 … within (job, step)."""

    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.CASCADE,
        related_name="log_chunks",
        db_index=False,
    )
    step = models.PositiveIntegerField(default=0)
    seq = models.PositiveIntegerField()
    chunk = models.BinaryField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_job_log_chunks"
        constraints = [models.UniqueConstraint(fields=["job", "step", "seq"], name="one_chunk_per_seq")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.step}/{self.seq}"


class UnsentRun(models.Model):
    """The run of a good execution whose upload failed: an operator may send it again without executing again."""

    job = models.OneToOneField(
        Job, to_field="job_ulid", db_column="job_ulid", on_delete=models.CASCADE, related_name="unsent_run"
    )
    payload = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_unsent_runs"

    def __str__(self) -> str:
        return f"run of {self.job_id}"
