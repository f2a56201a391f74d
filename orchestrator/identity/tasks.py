"""Replaces the key of identity tokens regularly."""

from datetime import timedelta

from django.conf import settings

from orchestrator.core.cause import Cause
from orchestrator.housekeeping.registry import task
from orchestrator.identity import keys
from runtime_jobs.events import Actor


@task("rotate_identity_key", every=lambda: timedelta(hours=6), is_standing=True)
def rotate_regularly(_subject: str) -> None:
    """Replace the key when it is old enough. The new one is published a day before it signs."""
    days = settings.IDENTITY_KEY_DAYS
    if days > 0:
        reason = f"The key is older than {days} days."
        keys.rotate_identity_key(cause=Cause(Actor("core", "housekeeping"), reason), older_than=timedelta(days=days))
