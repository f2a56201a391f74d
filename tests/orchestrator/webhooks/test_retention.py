"""Retention of deliveries and their tries: 30 days, with what was sent again lately, and webhooks that were deleted."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection

from orchestrator.core.cause import Cause
from orchestrator.maintenance.pruning import PruningTask, count_old_rows
from orchestrator.webhooks.models import Delivery, DeliveryTry, Webhook
from orchestrator.webhooks.operations import delete_webhook
from runtime_jobs.db_time import database_now
from tests.factories import ALICE
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

pytestmark = pytest.mark.django_db


def delivery_of(webhook, days, *, status="succeeded", tried_days=None):
    """A delivery that was created so many days ago, and tried so many days ago."""
    now = database_now()
    columns = {"due_at": now} if status == "pending" else {"due_at": None, "finished_at": now}
    (delivery,) = make_deliveries(webhook, status=status, created_at=now - timedelta(days=days), **columns)
    if tried_days is not None:
        DeliveryTry.objects.create(
            delivery=delivery, number=1, started_at=now - timedelta(days=tried_days), duration_ms=1, is_success=True,
            sentence="The receiver answered 204.",
        )  # fmt: skip
    return delivery


def pruned():
    counted = count_old_rows()
    deleted = PruningTask().delete_all()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    names = ("delivery_tries", "deliveries", "webhooks")
    assert {name: deleted[name] for name in names} == {name: counted.get(name, 0) for name in names}
    return tuple(deleted[name] for name in names)


def test_old_deliveries_are_deleted_with_their_tries():
    webhook = make_webhook()
    delivery_of(webhook, 31, tried_days=31)
    delivery_of(webhook, 31)
    kept = [
        delivery_of(webhook, 29, tried_days=29),
        delivery_of(webhook, 31, tried_days=2),  # sent again lately
        delivery_of(webhook, 31, status="pending"),
    ]
    assert pruned() == (1, 2, 0)
    assert set(Delivery.objects.values_list("pk", flat=True)) == {one.pk for one in kept}
    assert Webhook.objects.get() == webhook


def test_a_deleted_webhook_is_removed_when_it_has_no_deliveries():
    webhook = make_webhook()
    delivery_of(webhook, 29)
    delete_webhook(webhook_ulid=webhook.webhook_ulid, cause=Cause(ALICE, now=database_now() - timedelta(days=31)))
    assert pruned() == (0, 0, 0)
    Delivery.objects.all().delete()
    assert pruned() == (0, 0, 1)


def test_zero_keeps_them(settings):
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"deliveries": 0}
    delivery_of(make_webhook(), 400, tried_days=400)
    assert pruned() == (0, 0, 0)


def test_a_delivery_is_pending_exactly_while_it_is_due():
    webhook = make_webhook()
    with pytest.raises(IntegrityError):
        make_deliveries(webhook, status="dead")
