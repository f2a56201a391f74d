"""Outgoing webhooks: created, changed, deleted, and given new secrets. No function waits for a receiver."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.conf import settings

from leases.advisory_locks import WEBHOOKS_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.managed_rows import require_room
from orchestrator.core.operator_events import record_change_of, record_event_of
from orchestrator.core.sealing import seal, unseal
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.incidents.operations import resolve_for_webhook
from orchestrator.webhooks.models import Webhook, WebhookStatus
from orchestrator.webhooks.signatures import new_key, secret_text
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Organization

WEBHOOK_KEY: Final = "webhook"  # the purpose of sealed keys; see `orchestrator.core.sealing`
OVERLAP: Final = timedelta(hours=24)  # in which the secret before a rotation signs, too
NO_WEBHOOK: Final = "There is no such webhook, or you may not see it."


@dataclass(frozen=True)
class WebhookTerms:
    """Contains what a client sets of a webhook. The URL was checked by `orchestrator.webhooks.endpoints`."""

    url: str
    description: str = ""
    event_types: Sequence[str] = field(default_factory=tuple)
    job_types: Sequence[str] = field(default_factory=tuple)


@operation
def create_webhook(
    _: UnitOfWork,
    *,
    organization: Organization,
    terms: WebhookTerms,
    cause: Cause,
    idempotency: IdempotentRequest | None = None,
) -> tuple[Webhook, bool]:
    """Create a webhook with a new secret. Events that occur from now on are sent to it.

    Args:
        organization: The organization whose events are sent.
        terms: The URL and the filters.
        idempotency: The key of the request. A repetition returns the webhook of the first one.

    Returns:
        The webhook, and whether it is new.

    Raises:
        ResourceConflict: The organization has as many webhooks as it may have.
        NotFound: The webhook that an earlier request with this key has created was deleted.
    """
    advisory_xact_lock(WEBHOOKS_OF_ORGANIZATION, organization.pk)
    created_at = cause.now or database_now()
    webhook = Webhook(organization=organization, created_at=created_at)
    if idempotency and (first := idempotency.bind(webhook.webhook_ulid, now=created_at)) != webhook.webhook_ulid:
        return find_webhook(first), False
    counted = organization.webhooks.exclude(status=WebhookStatus.DELETED)
    require_room(counted, settings.WEBHOOKS_PER_ORGANIZATION)
    _set_terms(webhook, terms)
    webhook.sealed_secret = seal(WEBHOOK_KEY, new_key(), context=webhook.sealing_context)
    webhook.save_by(cause.actor, created_at)
    record_event_of(webhook, "created", cause.at(created_at), after=_facts(webhook))
    return webhook, True


@operation
def change_webhook(
    _: UnitOfWork,
    *,
    webhook_ulid: str,
    changes: dict[str, Any],
    cause: Cause,
) -> Webhook:
    """Change the URL, the description, the filters or the status of a webhook.

    A webhook that becomes active again is tried as if it had never failed, and its incident is resolved. What was not
    delivered meanwhile is a dead letter, which `redeliver_dead` sends again.

    Args:
        changes: Members of `WebhookTerms`, and `status`: active or paused.

    Raises:
        NotFound: The webhook does not exist.
    """
    webhook = lock_webhook(webhook_ulid)
    changed_at = cause.now or database_now()
    before = _facts(webhook)
    status = changes.get("status", webhook.status)
    terms = {name: changes.get(name, value) for name, value in _terms_of(webhook).items()}
    if terms["url"] != webhook.url:
        webhook.failing_since = None  # another receiver
    _set_terms(webhook, WebhookTerms(**terms))
    if status != webhook.status:
        webhook.status = status
        webhook.status_reason = "" if status == WebhookStatus.ACTIVE else f"Paused by {cause.actor.name}."[:300]
    if status == WebhookStatus.ACTIVE and "status" in changes:
        webhook.failing_since = None
        resolve_for_webhook(
            webhook.webhook_ulid, actor=cause.actor, resolution="The webhook was activated.", now=changed_at
        )
    webhook.save_by(cause.actor, changed_at)
    record_change_of(webhook, cause.at(changed_at), before=before, after=_facts(webhook))
    return webhook


@operation
def rotate_webhook_key(
    _: UnitOfWork,
    *,
    webhook_ulid: str,
    cause: Cause,
) -> Webhook:
    """Give a webhook a new secret. For a day deliveries are signed with the secret before, too.

    Raises:
        NotFound: The webhook does not exist.
    """
    webhook = lock_webhook(webhook_ulid)
    rotated_at = cause.now or database_now()
    former = unseal(WEBHOOK_KEY, webhook.sealed_secret or b"", context=webhook.sealing_context)
    webhook.sealed_former_secret = seal(WEBHOOK_KEY, former, context=webhook.former_sealing_context)
    webhook.former_secret_until = rotated_at + OVERLAP
    webhook.sealed_secret = seal(WEBHOOK_KEY, new_key(), context=webhook.sealing_context)
    webhook.save_by(cause.actor, rotated_at)
    record_event_of(webhook, "secret_rotated", cause.at(rotated_at))
    return webhook


@operation
def delete_webhook(
    _: UnitOfWork,
    *,
    webhook_ulid: str,
    cause: Cause,
) -> None:
    """Delete a webhook: its secrets, its notification rules, and from then on it does not exist for clients.

    Its deliveries may be many, so retention deletes them with the row.

    Raises:
        NotFound: The webhook does not exist.
    """
    webhook = lock_webhook(webhook_ulid)
    deleted_at = cause.now or database_now()
    before = _facts(webhook)
    webhook.status, webhook.status_reason = WebhookStatus.DELETED, ""
    webhook.sealed_secret = webhook.sealed_former_secret = webhook.former_secret_until = None
    webhook.notification_rules.all().delete()
    resolve_for_webhook(webhook.webhook_ulid, actor=cause.actor, resolution="The webhook was deleted.", now=deleted_at)
    webhook.save_by(cause.actor, deleted_at)
    record_event_of(webhook, "deleted", cause.at(deleted_at), before=before)


def webhook_secret(webhook: Webhook) -> str:
    """Return the current secret of a webhook, to be displayed once.

    Raises:
        SealedValueError: The secret cannot be opened.
    """
    return secret_text(unseal(WEBHOOK_KEY, webhook.sealed_secret or b"", context=webhook.sealing_context))


def find_webhook(webhook_ulid: str) -> Webhook:
    """Return a webhook with its organization.

    Raises:
        NotFound: It does not exist.
    """
    rows = Webhook.objects.select_related("organization").exclude(status=WebhookStatus.DELETED)
    webhook = rows.filter(webhook_ulid=webhook_ulid).first()
    if webhook is None:
        raise NotFound(NO_WEBHOOK)
    return webhook


def lock_webhook(webhook_ulid: str) -> Webhook:
    """Lock a webhook for a change, and return it.

    Raises:
        NotFound: It does not exist.
    """
    rows = Webhook.objects.select_for_update(of=("self",), no_key=True).filter(webhook_ulid=webhook_ulid)
    webhook = rows.select_related("organization").exclude(status=WebhookStatus.DELETED).first()
    if webhook is None:
        raise NotFound(NO_WEBHOOK)
    return webhook


def _terms_of(webhook: Webhook) -> dict[str, Any]:
    return {
        "url": webhook.url,
        "description": webhook.description,
        "event_types": webhook.event_types,
        "job_types": webhook.job_types,
    }


def _set_terms(webhook: Webhook, terms: WebhookTerms) -> None:
    webhook.url, webhook.description = terms.url, terms.description
    webhook.event_types, webhook.job_types = list(terms.event_types), list(terms.job_types)


def _facts(webhook: Webhook) -> dict[str, Any]:
    """Return what the audit log records. The path of a URL may contain a token, so the log has its fingerprint."""
    host = webhook.url.partition("://")[2].partition("/")[0]
    address = {"host": host, "url_sha256": fingerprint(webhook.url)}
    return _terms_of(webhook) | {"status": str(webhook.status), "url": address}
