"""The output of a job: log, artifacts, failure explanation, and a run that could not be uploaded."""

from django.db import models

from runtime_jobs.identifiers import ID_LENGTH, new_artifact_id
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
    """The run of a successful execution whose upload failed. An operator may upload it again."""

    job = models.OneToOneField(
        Job, to_field="job_ulid", db_column="job_ulid", on_delete=models.CASCADE, related_name="unsent_run"
    )
    payload = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_unsent_runs"

    def __str__(self) -> str:
        return f"run of {self.job_id}"


class Artifact(models.Model):
    """A reference to a file of a job, as its worker reported it. The server never fetches it."""

    artifact_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_artifact_id, editable=False)
    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.CASCADE,
        related_name="artifacts",
        db_index=False,
    )
    type = models.CharField(max_length=63)
    uri = models.CharField(max_length=2048)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_job_artifacts"
        constraints = [models.UniqueConstraint(fields=["job", "uri"], name="one_artifact_per_uri")]

    def __str__(self) -> str:
        return self.artifact_ulid


class FailureExplanation(models.Model):
    """A guess why a job failed, for display only (document 001, failure analysis)."""

    class Category(models.TextChoices):
        USER = "USER"
        INFRA = "INFRA"
        TOOLING = "TOOLING"
        FLAKY = "FLAKY"
        CANCELED = "CANCELED"
        UNKNOWN = "UNKNOWN"

    class Confidence(models.TextChoices):
        LOW = "LOW"
        MEDIUM = "MEDIUM"
        HIGH = "HIGH"

    job = models.OneToOneField(
        Job, to_field="job_ulid", db_column="job_ulid", on_delete=models.CASCADE, related_name="explanation"
    )
    category = models.CharField(max_length=10, choices=Category.choices)
    confidence = models.CharField(max_length=10, choices=Confidence.choices)
    summary = models.CharField(max_length=160)
    details = models.CharField(max_length=512, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_failure_explanations"

    def __str__(self) -> str:
        return f"{self.job_id}: {self.category}"
