"""The stored runs: one for each lease of a job, never overwritten."""

from django.db import models
from django.db.models.functions import Now

from runtime_jobs.identifiers import ID_LENGTH


class Run(models.Model):
    """A run as it was uploaded. `payload` is a `run.v1` document; the other columns are copies for lookups.

    `fence` is the fence of the lease under which the worker uploaded the run. It is null in rows of releases that did
    not record it and whose upload fell into no lease of the worker; see `orchestrator.ingest.run_checks`.
    """

    id = models.BigAutoField(primary_key=True)
    run_id = models.CharField(max_length=64, unique=True)
    job_id = models.CharField(max_length=ID_LENGTH)
    fence = models.BigIntegerField(null=True)
    org_slug = models.CharField(max_length=63)
    project_slug = models.CharField(max_length=63)
    worker_id = models.CharField(max_length=ID_LENGTH)
    payload = models.JSONField()
    payload_sha256 = models.CharField(max_length=64)
    received_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "orchestrator"
        db_table = "ingest_runs"
        # Nulls are not distinct: a process of the release before stores no fence, and a repeat must still find its row.
        constraints = [
            models.UniqueConstraint(fields=["job_id", "fence"], name="one_run_per_lease", nulls_distinct=False)
        ]
        # The runs of a project, newest first.
        indexes = [models.Index(fields=["org_slug", "project_slug", "-id"], name="runs_of_project")]

    def __str__(self) -> str:
        return self.run_id
