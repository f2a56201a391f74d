"""The runs that the reference ingest has taken: one for each job, never overwritten."""

from django.db import models
from django.db.models.functions import Now

from runtime_jobs.identifiers import ID_LENGTH


class Run(models.Model):
    """A traced run as it was uploaded. `payload` is `run.v1`; the identity fields are copies for look-ups."""

    id = models.BigAutoField(primary_key=True)
    run_id = models.CharField(max_length=64, unique=True)
    job_id = models.CharField(max_length=ID_LENGTH, unique=True)
    org_slug = models.CharField(max_length=63)
    project_slug = models.CharField(max_length=63)
    worker_id = models.CharField(max_length=ID_LENGTH)
    payload = models.JSONField()
    payload_sha256 = models.CharField(max_length=64)
    received_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "orchestrator"
        db_table = "ingest_runs"
        # The runs of a project, newest first.
        indexes = [models.Index(fields=["org_slug", "project_slug", "-id"], name="runs_of_project")]

    def __str__(self) -> str:
        return self.run_id
