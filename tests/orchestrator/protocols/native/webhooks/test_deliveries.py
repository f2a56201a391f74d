"""Deliveries of a webhook: listed, displayed with their tries, and sent again under the same id."""

from datetime import timedelta

import pytest

from orchestrator.webhooks import deliveries as operations
from orchestrator.webhooks.models import Delivery, DeliveryTry
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import OperatorEvent
from tests.api_client import refused
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

pytestmark = pytest.mark.django_db


@pytest.fixture
def webhook(organization):
    return make_webhook(organization)


def path_of(webhook, rest=""):
    return f"/v1/webhooks/{webhook.webhook_ulid}{rest}"


def ended(webhook, status="dead", number=1, **columns):
    now = database_now()
    return make_deliveries(
        webhook,
        number,
        **{"status": status, "due_at": None, "finished_at": now, "round_tries": 8, "tries": 8} | columns,
    )


def test_the_list_is_newest_first_and_filtered(alice, webhook):
    first, second = make_deliveries(webhook, 2)
    (dead,) = ended(webhook, event_type="job.failed", job_type="runtime", job_uuid=first.event_id)
    make_deliveries(make_webhook(webhook.organization))
    listed = alice.get(path_of(webhook, "/deliveries")).json()["results"]
    assert [one["delivery_id"] for one in listed] == [dead.delivery_ulid, second.delivery_ulid, first.delivery_ulid]
    for query in ("status=dead", "event_type=job.failed", "job_type=runtime"):
        found = alice.get(path_of(webhook, f"/deliveries?{query}")).json()["results"]
        assert [one["delivery_id"] for one in found] == [dead.delivery_ulid]
    assert found[0]["job_id"] == public_id_of("rtj", first.event_id)
    assert (found[0]["next_try_at"], found[0]["event_id"]) == (None, str(dead.event_id))
    refused(lambda: alice.get(path_of(webhook, "/deliveries?status=lost")), 400, "invalid_query")
    refused(lambda: alice.get(path_of(webhook, "/deliveries?event_type=x")), 400, "invalid_query")


def test_a_delivery_has_its_tries(alice, webhook):
    (delivery,) = make_deliveries(webhook)
    for number in (1, 2):
        DeliveryTry.objects.create(
            delivery=delivery, number=number, started_at=delivery.created_at, duration_ms=7, status_code=500,
            is_success=False, answer="no", sentence="The receiver answered 500.",
        )  # fmt: skip
    shown = alice.get(path_of(webhook, f"/deliveries/{delivery.delivery_ulid}")).json()
    assert shown["body"] == delivery.body
    assert [one["number"] for one in shown["last_tries"]] == [2, 1]
    assert shown["last_tries"][0]["answer"] == "no"


def test_a_delivery_of_another_webhook_is_not_there(alice, webhook):
    (delivery,) = ended(make_webhook(webhook.organization))
    path = path_of(webhook, f"/deliveries/{delivery.delivery_ulid}")
    refused(lambda: alice.get(path), 404, "not_found")
    refused(lambda: alice.post(f"{path}/redeliver"), 404, "not_found")


@pytest.mark.parametrize("status", ["dead", "succeeded"])
def test_what_has_ended_is_sent_again_under_its_id(alice, webhook, status):
    (delivery,) = ended(webhook, status)
    answer = alice.post(path_of(webhook, f"/deliveries/{delivery.delivery_ulid}/redeliver"))
    assert (answer.status_code, answer.json()["status"], answer.json()["tries"]) == (202, "pending", 8)
    again = Delivery.objects.get()
    assert (again.event_id, again.body, again.round_tries) == (delivery.event_id, delivery.body, 0)
    assert again.due_at <= database_now()
    assert OperatorEvent.objects.filter(action="webhook.redelivered").count() == 1


def test_what_is_on_its_way_is_not_sent_again(alice, webhook):
    (delivery,) = make_deliveries(webhook)
    refused(lambda: alice.post(path_of(webhook, f"/deliveries/{delivery.delivery_ulid}/redeliver")), 409, "conflict")


def test_the_dead_letters_are_sent_again(alice, webhook):
    ended(webhook, number=3)
    ended(webhook, "succeeded")
    make_deliveries(webhook)
    answer = alice.post(path_of(webhook, "/redeliver"))
    assert (answer.status_code, answer.json()) == (202, {"redelivered": 3, "has_more": False, "next_since": None})
    assert Delivery.objects.filter(status="pending").count() == 4


def test_all_since_a_time_are_sent_again_in_parts(alice, webhook, monkeypatch):
    monkeypatch.setattr(operations, "MAX_REDELIVERED", 2)
    now = database_now()
    ended(webhook, "succeeded", created_at=now - timedelta(hours=2))
    for minutes in (30, 20, 10):
        ended(webhook, "succeeded", created_at=now - timedelta(minutes=minutes))
    since = (now - timedelta(hours=1)).isoformat()
    first = alice.post(path_of(webhook, "/redeliver"), {"since": since}).json()
    assert (first["redelivered"], first["has_more"]) == (2, True)
    second = alice.post(path_of(webhook, "/redeliver"), {"since": first["next_since"]}).json()
    assert (second["redelivered"], second["has_more"], second["next_since"]) == (1, False, None)
    assert Delivery.objects.filter(status="pending").count() == 3


def test_a_webhook_that_is_not_active_gets_nothing_again(alice, webhook):
    (delivery,) = ended(webhook)
    alice.call("PATCH", path_of(webhook), {"status": "paused"})
    refused(lambda: alice.post(path_of(webhook, "/redeliver")), 409, "conflict")
    refused(lambda: alice.post(path_of(webhook, f"/deliveries/{delivery.delivery_ulid}/redeliver")), 409, "conflict")


@pytest.mark.parametrize("body", [{"since": "yesterday"}, {"since": 5}, {"status": "dead"}])
def test_a_bad_redelivery_is_refused(alice, webhook, body):
    ended(webhook)
    assert alice.post(path_of(webhook, "/redeliver"), body).status_code == 400
    assert Delivery.objects.get().status == "dead"
