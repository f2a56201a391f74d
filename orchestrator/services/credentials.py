"""Credentials of workers, API clients and webhooks.

A token is returned once, by the operation that creates it. Only its digest is stored. The secret of a project's webhook
is derived from the key of the installation and a generation, and is not stored either.
"""

from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.utils.crypto import salted_hmac

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_event_of, record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import ApiToken, Organization, PersonalKey, Project
from workers.models import Pool, Worker
from workers.registry.tokens import API_PREFIX, PROJECT_PREFIX, WORKER_PREFIX, digest_of, new_key, new_token

WEBHOOK_PREFIX = "rto_hook_"
# Part of the derivation of each secret: another value makes the secrets of all installations invalid.
_WEBHOOK_SALT = "orchestrator.webhook_secrets"


@operation
def register_worker(
    _: UnitOfWork,
    *,
    slug: str,
    pool: Pool,
    capacity: int,
    labels: Sequence[str],
    capabilities: Sequence[str],
    certificate_subject: str | None = None,
    cause: Cause,
) -> tuple[Worker, str]:
    """Register a worker for a pool. The pool of runners is refused: its workers have keys, from `create_runner`.

    Args:
        slug: The name of the worker.
        pool: The pool in which it claims.
        capacity: The maximum number of jobs at once.
        labels: The labels that it may offer. They count for the requirements of jobs, like capabilities.
        capabilities: The capabilities that it may offer.
        certificate_subject: The subject of its client certificate, if it has one.

    Returns:
        The worker and its token.

    Raises:
        Invalid: The pool is that of runners.
    """
    require_other_pool(pool)
    token = new_token(WORKER_PREFIX)
    fields = {
        "slug": slug,
        "capacity": capacity,
        "labels": list(labels),
        "capabilities": list(capabilities),
        "certificate_subject": certificate_subject or None,
    }
    worker = Worker.objects.create(pool=pool, digest=digest_of(token), **fields)
    record_operator_event(
        "worker.registered",
        target=worker.worker_id,
        cause=cause,
        after=fields | {"pool": pool.slug},
    )
    return worker, token


def require_other_pool(pool: Pool) -> None:
    """Check that a pool is neither that of runners nor that of the server. A token would give its holder their jobs.

    Raises:
        Invalid: It is.
    """
    if pool.slug == settings.EXPORT_POOL:
        raise Invalid({"pool": [f"{pool.slug} is the pool of the dispatchers (EXPORT_POOL). Use another pool."]})
    if pool.slug == settings.RUNNER_POOL:
        raise Invalid({"pool": [f"{pool.slug} is the pool of runners (RUNNER_POOL). Create a runner instead."]})


@operation
def create_api_token(
    _: UnitOfWork,
    *,
    organization: Organization,
    name: str,
    scopes: Sequence[str],
    cause: Cause,
    project: Project | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """Create an API token of an organization, or a key of one of its projects for the Bencher API.

    Args:
        name: A name for people.
        scopes: The scopes that the token grants. A key of a project has none.
        project: The project of the key, or None for a token of the organization.
        expires_at: The end of the token, or None.

    Returns:
        The row and the token.

    Raises:
        Invalid: The project belongs to another organization, or the key of a project would have scopes.
    """
    if project is not None and project.organization_id != organization.pk:
        raise Invalid({"project": [f"Must be a project of the organization {organization.slug}."]})
    if project is not None and scopes:
        raise Invalid({"scopes": ["Must be empty: the key of a project has no scopes."]})
    token = new_token(API_PREFIX) if project is None else new_key(PROJECT_PREFIX)
    row = ApiToken.objects.create(
        organization=organization,
        project=project,
        name=name,
        digest=digest_of(token),
        scopes=list(scopes),
        created_by=cause.actor.name[:150],
        expires_at=expires_at,
    )
    after = {"name": name, "scopes": list(scopes), "expires_at": expires_at and expires_at.isoformat()}
    if project is not None:
        after["project"] = project.slug
    record_event_of(row, "created", cause, after=after)
    return row, token


@operation
def revoke_api_token(
    _: UnitOfWork,
    *,
    token_id: int,
    cause: Cause,
) -> ApiToken:
    """Revoke an API token. A repetition changes nothing.

    Raises:
        NotFound: The token does not exist.
    """
    row = ApiToken.objects.select_for_update(of=("self",)).select_related("organization").filter(pk=token_id).first()
    if row is None:
        raise NotFound(f"The API token {token_id} does not exist.")
    revoke(row, cause)
    return row


def revoke(row: ApiToken | PersonalKey, cause: Cause) -> None:
    """Revoke a locked token or key. A repetition changes nothing."""
    if row.revoked_at is None:
        row.revoked_at = cause.now or database_now()
        row.save(update_fields=["revoked_at"])
        record_event_of(row, "revoked", cause)


@operation
def rotate_webhook_secret(
    _: UnitOfWork,
    *,
    project_id: int,
    cause: Cause,
) -> tuple[Project, str]:
    """Create the first or another webhook secret of a project. The secret before becomes invalid.

    Returns:
        The project and the secret.

    Raises:
        NotFound: The project does not exist.
    """
    rows = Project.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
    project = rows.filter(pk=project_id).first()
    if project is None:
        raise NotFound(f"The project with key {project_id} does not exist.")
    before = project.webhook_generation
    project.webhook_generation = before + 1
    project.save(update_fields=["webhook_generation"])
    record_operator_event(
        "project.webhook_secret_rotated",
        target=f"project:{project}"[:200],
        cause=cause,
        before={"webhook_generation": before},
        after={"webhook_generation": before + 1},
        org_slug=project.organization.slug,
    )
    return project, webhook_secret(project)


def webhook_secret(project: Project) -> str:
    """Return the current webhook secret of a project whose generation is not 0."""
    return _derive_secret(project, settings.SECRET_KEY)


def valid_webhook_secrets(project: Project) -> list[str]:
    """Return the webhook secrets that a project accepts.

    They include those derived from former keys of the installation that `SECRET_KEY_FALLBACKS` names. The list is
    empty if no secret was ever created.
    """
    if not project.webhook_generation:
        return []
    return [_derive_secret(project, key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]


def _derive_secret(project: Project, key: str) -> str:
    value = f"{project.pk}:{project.webhook_generation}"
    return WEBHOOK_PREFIX + salted_hmac(_WEBHOOK_SALT, value, secret=key, algorithm="sha256").hexdigest()
