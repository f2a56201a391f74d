"""The pages *Webhooks*, *Deliveries* and *Notifications*: buttons are operations, and leave an event with a reason."""

from datetime import timedelta

import pytest

from orchestrator.core.cause import Cause
from orchestrator.incidents import incident_mode
from orchestrator.webhooks.models import Delivery, NotificationRule, Webhook
from runtime_jobs.db_time import database_now
from runtime_jobs.models import OperatorEvent
from tests.factories import ALICE, OrganizationFactory
from tests.orchestrator.admin.pages import address
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

pytestmark = pytest.mark.django_db
WHY = {"reason": "the receiver works again"}


@pytest.fixture
def webhook(db):
    return make_webhook(OrganizationFactory(slug="acme"))


def press(client, row, name, form=WHY):
    return client.post(address(type(row), name, row.pk), form)


def last_event():
    event = OperatorEvent.objects.latest("pk")
    return event.action, event.actor, event.reason


def test_a_webhook_is_paused_activated_and_deleted(olga, webhook):
    for name, status in (("pause", "paused"), ("activate", "active")):
        assert press(olga, webhook, name).status_code == 302
        webhook.refresh_from_db()
        assert webhook.status == status
        assert last_event() == ("webhook.changed", "operator:olga", WHY["reason"])
    assert press(olga, webhook, "remove").status_code == 302
    assert Webhook.objects.get().status == "deleted"
    assert olga.get(address(Webhook, "changelist")).status_code == 200  # with the messages of the buttons
    assert webhook.webhook_ulid not in olga.get(address(Webhook, "changelist")).content.decode()


def test_a_test_event_and_dead_letters_are_due(olga, webhook):
    (dead,) = make_deliveries(webhook, status="dead", due_at=None, finished_at=database_now())
    assert (
        "1 delivery due now"
        in olga.post(address(Webhook, "redeliver_dead", webhook.pk), WHY, follow=True).content.decode()
    )
    press(olga, webhook, "test")
    assert Delivery.objects.filter(status="pending").count() == 2
    dead.refresh_from_db()
    assert dead.status == "pending"


def test_a_delivery_is_sent_again(olga, webhook):
    (dead,) = make_deliveries(webhook, status="succeeded", due_at=None, finished_at=database_now())
    press(olga, dead, "redeliver")
    dead.refresh_from_db()
    assert dead.status == "pending"
    assert last_event() == ("webhook.redelivered", "operator:olga", WHY["reason"])
    refused = olga.post(address(Delivery, "redeliver", dead.pk), WHY, follow=True).content.decode()
    assert "on its way" in refused


def test_a_rule_is_switched_off_and_deleted(olga, webhook):
    rule = NotificationRule.objects.create(
        organization=webhook.organization, name="failures", event_types=["job.failed"], webhook=webhook
    )
    for name, is_enabled in (("disable", False), ("enable", True)):
        press(olga, rule, name)
        rule.refresh_from_db()
        assert rule.is_enabled is is_enabled
    press(olga, rule, "remove")
    assert not NotificationRule.objects.exists()


def test_nothing_happens_without_a_reason_or_the_permission(olga, viewer, webhook):
    assert press(olga, webhook, "pause", {"reason": ""}).status_code == 400
    assert press(viewer, webhook, "pause").status_code == 403
    webhook.refresh_from_db()
    assert webhook.status == "active"


def test_pages_offer_what_is_possible(olga, webhook):
    def offered(row):
        page = olga.get(address(type(row), "change", row.pk)).content.decode()
        names = ("pause", "activate", "test", "redeliver", "enable", "disable", "remove")
        return {name for name in names if f"/{row.pk}/{name}/" in page}

    assert offered(webhook) == {"pause", "test", "redeliver", "remove"}
    pending, dead = make_deliveries(webhook, 2)
    Delivery.objects.filter(pk=dead.pk).update(status="dead", due_at=None, finished_at=database_now())
    assert (offered(pending), offered(dead)) == (set(), {"redeliver"})
    rule = NotificationRule.objects.create(
        organization=webhook.organization, name="failures", event_types=["job.failed"], webhook=webhook
    )
    assert offered(rule) == {"disable", "remove"}
    Webhook.objects.update(status="paused")
    NotificationRule.objects.update(is_enabled=False)
    assert offered(webhook) == {"activate", "remove"}
    assert offered(rule) == {"enable", "remove"}


def test_the_page_of_rules_says_that_incident_mode_gathers_nothing(olga, webhook):
    NotificationRule.objects.create(
        organization=webhook.organization, name="failures", event_types=["job.failed"], webhook=webhook
    )
    text = "Not gathered: incident mode"
    assert text not in olga.get(address(NotificationRule, "changelist")).content.decode()
    until = database_now() + timedelta(hours=1)
    incident_mode.begin_incident_mode(org_slug="acme", cause=Cause(ALICE, "a leak"), until=until)
    assert text in olga.get(address(NotificationRule, "changelist")).content.decode()
    rule = NotificationRule.objects.get()
    assert text in olga.get(address(NotificationRule, "change", rule.pk)).content.decode()


@pytest.mark.parametrize(("model", "name"), [(Webhook, "pause"), (NotificationRule, "disable")])
def test_a_button_of_what_does_not_exist_is_not_there(olga, webhook, model, name):
    assert olga.get(address(model, name, 4711)).status_code == 404
    assert olga.post(address(model, name, 4711), WHY).status_code == 404
