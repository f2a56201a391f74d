"""Rows that clients and operators create, change and delete: webhooks, notification rules, schedules."""

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models.functions import Now

from runtime_jobs.errors import ResourceConflict
from runtime_jobs.events import Actor


class ManagedRow(models.Model):
    """A row of an organization with the time and the author of its last change."""

    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    updated_by = models.CharField(max_length=200)

    class Meta:
        abstract = True

    def save_by(self, actor: Actor, now: datetime) -> None:
        """Save the whole row as changed by the actor."""
        self.updated_at, self.updated_by = now, str(actor)[:200]
        self.save()


def require_room(rows: models.QuerySet[Any], limit: int) -> None:
    """Refuse a further row. The caller holds the lock under which an organization gets rows of this kind.

    Args:
        rows: The rows of the organization that count.
        limit: The highest number of them.

    Raises:
        ResourceConflict: The organization has as many rows as it may have.
    """
    if rows.count() >= limit:
        nouns = rows.model._meta.verbose_name_plural  # noqa: SLF001 Django's name
        raise ResourceConflict(f"The organization has {limit} {nouns}, which is its limit. Delete one.", limit=limit)
