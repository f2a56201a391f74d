"""Secrets of webhooks: one a project, derived from the installation's key and never stored. Rotating is counting on."""

from django.conf import settings
from django.utils.crypto import salted_hmac

from runtime_jobs.models import Project

PREFIX = "rto_hook_"
_PURPOSE = "orchestrator.services.webhook_secrets"


def secret_of(project: Project) -> str:
    """What the project's webhook signs with in its present generation, which must not be 0."""
    return _derived(project, settings.SECRET_KEY)


def secrets_of(project: Project) -> list[str]:
    """Those that count: also what older keys of the installation made, as long as SECRET_KEY_FALLBACKS names them.

    None where no secret was ever made."""
    if not project.webhook_generation:
        return []
    return [_derived(project, key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]


def _derived(project: Project, key: str) -> str:
    value = f"{project.pk}:{project.webhook_generation}"
    return PREFIX + salted_hmac(_PURPOSE, value, secret=key, algorithm="sha256").hexdigest()
