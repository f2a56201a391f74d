"""JSON Schemas of tenants for the payloads of their jobs."""

from django.db import models
from django.db.models.functions import Now

from runtime_jobs.models.tenants import Organization


class PayloadSchema(models.Model):
    """The JSON Schema that payloads of one job type must match in one organization.

    `runtime_jobs.specs.payload_schema` decides which schemas are accepted.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="payload_schemas", db_index=False
    )
    job_type = models.CharField(max_length=50)
    document = models.JSONField()
    version = models.PositiveIntegerField(default=1)
    changed_by = models.CharField(max_length=200)
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "payload_schemas"
        constraints = [models.UniqueConstraint(fields=["organization", "job_type"], name="one_payload_schema_per_type")]

    def __str__(self) -> str:
        return f"{self.organization.slug}:{self.job_type}"
