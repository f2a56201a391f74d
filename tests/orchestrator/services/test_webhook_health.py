"""Failures of a webhook: 410 disables it, five days pause it and open an incident, a success clears them."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, transaction

from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.incidents.models import Incident
from orchestrator.webhooks.delivery_queue import FinishedTry, claim_deliveries, record_tries
from orchestrator.webhooks.health import record_health
from orchestrator.webhooks.models import Delivery, Webhook
from orchestrator.webhooks.sender import TryResult
from runtime_jobs.models import OperatorEvent
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

pytestmark = pytest.mark.django_db
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def webhook(db):
    return make_webhook()


def tried(webhook, now, *statuses, **facts):
    """Send new deliveries with these results."""
    make_deliveries(webhook, len(statuses), due_at=now)
    claimed = claim_deliveries(len(statuses), now=now)
    assert len(claimed) == len(statuses)
    facts = {"sentence": "The receiver answered."} | facts
    results = [TryResult(now, 1, is_success=status < 300, status_code=status, **facts) for status in statuses]
    tries = [FinishedTry(one, result) for one, result in zip(claimed, results, strict=True)]
    record_tries(tries, record_health=record_health, now=now)
    webhook.refresh_from_db()
    Delivery.objects.filter(due_at__isnull=False).update(due_at=None, status="dead", finished_at=now)


def test_the_first_failure_is_kept_and_a_success_clears_it(webhook):
    tried(webhook, NOW, 500)
    assert webhook.failing_since == NOW
    tried(webhook, NOW + timedelta(hours=1), 500, 500)
    assert webhook.failing_since == NOW
    tried(webhook, NOW + timedelta(hours=2), 500, 204)
    assert (webhook.failing_since, webhook.status) == (None, "active")


def test_five_days_of_failure_pause_a_webhook_and_open_an_incident(webhook):
    tried(webhook, NOW, 500)
    tried(webhook, NOW + timedelta(days=5) - timedelta(seconds=1), 500)
    assert webhook.status == "active"
    tried(webhook, NOW + timedelta(days=5), 500)
    assert (webhook.status, webhook.status_reason) == ("paused", "All deliveries have failed for 5 days.")
    incident = Incident.objects.get()
    assert (incident.kind, incident.org_slug, incident.resolved_at) == ("webhook", "sandtrace", None)
    assert incident.webhook_ulid == webhook.webhook_ulid
    assert webhook.webhook_ulid in incident.summary
    events = OperatorEvent.objects.filter(actor="core:policy").values_list("action", "org_slug")
    assert set(events) == {("webhook.paused", "sandtrace"), ("incident.opened", "sandtrace")}
    opened = OperatorEvent.objects.get(action="incident.opened")
    assert opened.target == f"incident:{incident.incident_ulid}"
    assert opened.after == {"kind": "webhook", "webhook_id": webhook.webhook_ulid, "status": "open"}


def test_a_retried_record_opens_one_incident(webhook):
    """The incident belongs to the unit of work of the record: an attempt that is undone leaves none."""
    tried(webhook, NOW, 500)
    undone = OperationalError()
    undone.__cause__ = psycopg.errors.DeadlockDetected()
    attempts = iter([undone, None])

    def record_once_undone(uow, tries, *, now):
        record_health(uow, tries, now=now)
        if error := next(attempts):
            raise error

    make_deliveries(webhook, due_at=NOW + timedelta(days=5))
    claimed = claim_deliveries(1, now=NOW + timedelta(days=5))
    result = TryResult(NOW, 1, is_success=False, sentence="No answer.")
    tries = [FinishedTry(claimed[0], result)]
    assert record_tries(tries, record_health=record_once_undone, now=NOW + timedelta(days=5)) == 1
    assert Incident.objects.count() == OperatorEvent.objects.filter(action="incident.opened").count() == 1


def test_410_disables_a_webhook_at_once(webhook):
    tried(webhook, NOW, 410, is_gone=True)
    assert webhook.status == "disabled"
    assert "410" in webhook.status_reason
    assert Delivery.objects.get().status == "dead"
    assert not Incident.objects.exists()


def test_a_success_of_a_healthy_webhook_writes_nothing_to_it(webhook, django_assert_num_queries):
    make_deliveries(webhook, due_at=NOW)
    claimed = claim_deliveries(1, now=NOW)
    tries = [FinishedTry(claimed[0], TryResult(NOW, 1, is_success=True, sentence="Fine."))]
    with django_assert_num_queries(0):
        record_health(UnitOfWork(), tries, now=NOW)
    before = Webhook.objects.values().get()
    record_tries(tries, record_health=record_health, now=NOW)
    assert Webhook.objects.values().get() == before


def test_a_webhook_that_a_client_has_paused_stays_so(webhook):
    make_deliveries(webhook, due_at=NOW)
    claimed = claim_deliveries(1, now=NOW)
    Webhook.objects.update(status="paused", status_reason="Paused by alice.")
    result = TryResult(NOW, 1, is_success=False, sentence="Gone.", is_gone=True)
    record_tries([FinishedTry(claimed[0], result)], record_health=record_health, now=NOW)
    webhook.refresh_from_db()
    assert (webhook.status, webhook.status_reason) == ("paused", "Paused by alice.")


def test_a_webhook_has_one_unresolved_incident(webhook):
    terms = {"kind": "webhook", "org_slug": "sandtrace", "job_type": "", "summary": "x", "opened_at": NOW}
    Incident.objects.create(**terms, webhook_ulid=webhook.webhook_ulid, resolved_at=NOW, resolved_by="x")
    Incident.objects.create(**terms, webhook_ulid=webhook.webhook_ulid)
    with pytest.raises(IntegrityError, match="one_unresolved_incident_per_webhook"), transaction.atomic():
        Incident.objects.create(**terms, webhook_ulid=webhook.webhook_ulid)
