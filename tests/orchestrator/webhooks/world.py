"""Webhooks and deliveries for tests, made by the operations."""

from typing import Any
from uuid import uuid4

from orchestrator.core.cause import Cause
from orchestrator.webhooks.models import Delivery, Webhook
from orchestrator.webhooks.operations import WebhookTerms, create_webhook
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Organization
from tests.factories import ALICE, OrganizationFactory

URL = "https://93.184.216.34/hook"  # a literal address: no test resolves a name


def make_webhook(organization: Organization | None = None, **changes: Any) -> Webhook:
    """A webhook of an organization. `now` is the time of its creation."""
    now = changes.pop("now", None)
    terms = WebhookTerms(**{"url": URL} | changes)
    organization = organization or OrganizationFactory(slug="sandtrace")
    return create_webhook(organization=organization, terms=terms, cause=Cause(ALICE, now=now))[0]


def make_deliveries(webhook: Webhook, number: int = 1, **columns: Any) -> list[Delivery]:
    """Deliveries of a webhook that are due."""
    now = database_now()
    values = {"due_at": now, "created_at": now, "event_type": "job.completed", "body": '{"a":1}'} | columns
    rows = [
        Delivery(webhook=webhook, org_slug=webhook.organization.slug, event_id=uuid4(), **values) for _ in range(number)
    ]
    return Delivery.objects.bulk_create(rows)
