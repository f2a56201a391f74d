"""Who may come in: workers, API tokens, webhooks. A plain token is returned once, by its verb, and kept nowhere."""

from collections.abc import Sequence
from datetime import datetime

from orchestrator.services.operator_actions import record_operator_event
from orchestrator.services.unit_of_work.operation import operation
from orchestrator.services.webhook_secrets import secret_of
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, Organization, Project
from workers.models import Pool, Worker
from workers.registry.tokens import API_PREFIX, WORKER_PREFIX, digest_of, new_token


@operation
def register_worker(
    *,
    slug: str,
    pool: Pool,
    capacity: int,
    labels: Sequence[str],
    capabilities: Sequence[str],
    certificate_subject: str | None = None,
    actor: Actor,
    source_address: str | None = None,
    now: datetime | None = None,
) -> tuple[Worker, str]:
    """Make a worker that may claim in this pool, and the token by which it does. `certificate_subject`: as what its
    client certificate names it, if it has one."""
    token = new_token(WORKER_PREFIX)
    worker = Worker.objects.create(
        slug=slug,
        pool=pool,
        capacity=capacity,
        labels=list(labels),
        capabilities=list(capabilities),
        certificate_subject=certificate_subject or None,
        digest=digest_of(token),
    )
    after = {
        "slug": slug,
        "pool": pool.slug,
        "capacity": capacity,
        "labels": list(labels),
        "capabilities": list(capabilities),
        "certificate_subject": certificate_subject or None,
    }
    record_operator_event(
        "worker.registered", target=worker.worker_id, actor=actor, after=after, source_address=source_address, now=now
    )
    return worker, token


@operation
def create_api_token(
    *,
    organization: Organization,
    name: str,
    scopes: Sequence[str],
    actor: Actor,
    expires_at: datetime | None = None,
    source_address: str | None = None,
    now: datetime | None = None,
) -> tuple[ApiToken, str]:
    """Make a key for programs of the organization."""
    token = new_token(API_PREFIX)
    row = ApiToken.objects.create(
        organization=organization,
        name=name,
        digest=digest_of(token),
        scopes=list(scopes),
        created_by=actor.name[:150],
        expires_at=expires_at,
    )
    after = {"name": name, "scopes": list(scopes), "expires_at": expires_at and expires_at.isoformat()}
    record_operator_event(
        "token.created", target=_name_of(row), actor=actor, after=after, source_address=source_address, now=now
    )
    return row, token


@operation
def revoke_api_token(
    *, token_id: int, actor: Actor, reason: str, source_address: str | None = None, now: datetime | None = None
) -> ApiToken:
    """End a key. Again: nothing changes. Raises NotFound."""
    row = ApiToken.objects.select_for_update(of=("self",)).select_related("organization").filter(pk=token_id).first()
    if row is None:
        raise NotFound("There is no such token.")
    if row.revoked_at is None:
        row.revoked_at = now or database_now()
        row.save(update_fields=["revoked_at"])
        record_operator_event(
            "token.revoked", target=_name_of(row), actor=actor, reason=reason, source_address=source_address, now=now
        )
    return row


@operation
def rotate_webhook_secret(
    *, project_id: int, actor: Actor, reason: str, source_address: str | None = None, now: datetime | None = None
) -> tuple[Project, str]:
    """Give the project's webhook its first secret, or another one; the one before counts no more. Raises NotFound."""
    rows = Project.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
    project = rows.filter(pk=project_id).first()
    if project is None:
        raise NotFound("There is no such project.")
    before = project.webhook_generation
    project.webhook_generation = before + 1
    project.save(update_fields=["webhook_generation"])
    record_operator_event(
        "project.webhook_secret_rotated",
        target=f"project:{project}"[:200],
        actor=actor,
        before={"webhook_generation": before},
        after={"webhook_generation": before + 1},
        reason=reason,
        source_address=source_address,
        now=now,
    )
    return project, secret_of(project)


def _name_of(token: ApiToken) -> str:
    return f"token:{token.organization.slug}/{token.pk}"
