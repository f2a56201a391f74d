"""Versions of packs: plans of steps under a name that pack runs execute (document 004, section 5)."""

from typing import Final

from django.db import models
from django.db.models.functions import Now

from runtime_jobs.models.tenants import Organization

MAX_PACK_NAME_LENGTH: Final = 100
MAX_PACK_VERSION_LENGTH: Final = 64


class PackVersion(models.Model):
    """One version of a pack of an organization. A version never changes: a trigger of the database refuses updates.

    Attributes:
        plan: The plan as it was registered. `runtime_jobs.specs.packs` names its members.
        plan_hash: SHA-256 of the plan's canonical form (RFC 8785), as hexadecimal digits.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="pack_versions", db_index=False
    )
    pack_id = models.CharField("pack", max_length=MAX_PACK_NAME_LENGTH)
    version = models.CharField(max_length=MAX_PACK_VERSION_LENGTH)
    plan = models.JSONField()
    plan_hash = models.CharField(max_length=64)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pack_versions"
        constraints = [
            models.UniqueConstraint(fields=["organization", "pack_id", "version"], name="one_pack_per_version")
        ]

    def __str__(self) -> str:
        return f"{self.pack_id} {self.version}"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"pack:{self.organization.slug}:{self}"
