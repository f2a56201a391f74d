"""Batches of jobs: the run of document 001, the workflow run of document 003."""

from django.db import models

from runtime_jobs.identifiers import ID_LENGTH, new_batch_id
from runtime_jobs.states import CancelReason


class Batch(models.Model):
    """A batch of jobs. Its state is computed from the jobs at each read.

    `details` belongs to the protocol that created the batch.
    """

    id = models.BigAutoField(primary_key=True)
    batch_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_batch_id, editable=False)
    org_slug = models.CharField(max_length=63)
    project_slug = models.CharField(max_length=63)
    repo_url = models.CharField(max_length=512, null=True)
    git_ref = models.CharField(max_length=255, null=True)
    git_commit = models.CharField(max_length=64, null=True)
    trigger_kind = models.CharField(max_length=20)
    trigger_actor = models.CharField(max_length=200, null=True)
    details = models.JSONField(default=dict)
    rerun_of = models.CharField(max_length=ID_LENGTH, null=True, help_text="The batch that was run again.")
    correlation_id = models.CharField(max_length=64)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_reason = models.CharField(max_length=30, null=True, choices=CancelReason.choices)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_batches"
        verbose_name_plural = "batches"
        indexes = [
            # The lists of an organization's batches, newest first.
            models.Index(models.F("org_slug"), models.F("id").desc(), name="batches_of_organization"),
        ]

    def __str__(self) -> str:
        return self.batch_ulid
