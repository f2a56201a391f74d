"""Claims of deliveries: ten places for each webhook, nothing twice, and what a try means for the next one."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from orchestrator.webhooks import delivery_queue
from orchestrator.webhooks.delivery_queue import (
    FinishedTry,
    claim_deliveries,
    claim_mail,
    record_tries,
    release_inactive,
)
from orchestrator.webhooks.health import record_health
from orchestrator.webhooks.models import Delivery, DeliveryTry, Webhook, WebhookStatus
from orchestrator.webhooks.sender import TryResult
from tests.factories import OrganizationFactory
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

pytestmark = pytest.mark.django_db
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def result(*, is_success=False, **facts):
    values = {"started_at": NOW, "duration_ms": 7, "sentence": "The receiver answered.", "status_code": 500}
    return TryResult(**values | {"is_success": is_success} | facts)


def record(claimed, *results, now=NOW):
    tries = [FinishedTry(one, found) for one, found in zip(claimed, results, strict=True)]
    return record_tries(tries, record_health=record_health, jitter=lambda: 1.0, now=now)


@pytest.fixture
def webhook(db):
    return make_webhook()


def due(webhook, number=1, **columns):
    return make_deliveries(webhook, number, **{"due_at": NOW - timedelta(seconds=1)} | columns)


def test_a_claim_has_what_is_needed_to_send(webhook):
    (delivery,) = due(webhook, body='{"é":1}')
    (claimed,) = claim_deliveries(10, now=NOW)
    assert (claimed.id, claimed.body, claimed.event_id) == (delivery.pk, '{"é":1}', delivery.event_id)
    assert (claimed.url, claimed.webhook_ulid, claimed.webhook_id) == (webhook.url, webhook.webhook_ulid, webhook.pk)
    assert (claimed.sealed_secret, claimed.sealed_former_secret) == (bytes(webhook.sealed_secret), None)
    assert (claimed.claim_count, claimed.tries, claimed.is_failing) == (1, 0, False)
    delivery.refresh_from_db()
    assert delivery.claimed_until == NOW + delivery_queue.CLAIM_TIME


def test_what_is_claimed_is_not_claimed_again_until_its_time_is_over(webhook):
    due(webhook)
    assert len(claim_deliveries(10, now=NOW)) == 1
    assert claim_deliveries(10, now=NOW + timedelta(seconds=59)) == []
    (again,) = claim_deliveries(10, now=NOW + timedelta(seconds=60))
    assert again.claim_count == 2


def test_what_is_not_due_is_not_claimed(webhook):
    due(webhook, due_at=NOW + timedelta(seconds=1))
    assert claim_deliveries(10, now=NOW) == []
    assert len(claim_deliveries(10, now=NOW + timedelta(seconds=1))) == 1


def test_a_webhook_has_ten_places(webhook):
    due(webhook, 25)
    first = claim_deliveries(100, now=NOW)
    assert len(first) == 10
    assert claim_deliveries(100, now=NOW) == []
    record(first[:3], *[result(is_success=True)] * 3)
    assert len(claim_deliveries(100, now=NOW)) == 3


def test_a_webhook_in_trouble_holds_up_no_other_one(webhook):
    due(webhook, 50)
    assert len(claim_deliveries(100, now=NOW)) == 10
    others = [make_webhook(OrganizationFactory()) for _ in range(3)]
    for other in others:
        due(other, 2)
    claimed = claim_deliveries(100, now=NOW)
    assert sorted(one.webhook_id for one in claimed) == sorted(2 * [other.pk for other in others])


def test_a_failing_webhook_has_fewer_places(webhook):
    due(webhook, 25)
    Webhook.objects.update(failing_since=NOW)
    claimed = claim_deliveries(100, now=NOW)
    assert (len(claimed), claimed[0].is_failing) == (delivery_queue.PLACES_WHILE_FAILING, True)


def test_the_capacity_bounds_a_claim(webhook):
    due(webhook, 5)
    assert claim_deliveries(0, now=NOW) == []
    assert len(claim_deliveries(3, now=NOW)) == 3


@pytest.mark.parametrize("status", [WebhookStatus.PAUSED, WebhookStatus.DISABLED, WebhookStatus.DELETED])
def test_what_waits_for_a_webhook_that_is_not_active_becomes_a_dead_letter(webhook, status):
    due(webhook, 2)
    due(make_webhook(webhook.organization))
    Webhook.objects.filter(pk=webhook.pk).update(status=status)
    assert len(claim_deliveries(100, now=NOW)) == 1
    assert release_inactive(now=NOW) == 2
    assert release_inactive(now=NOW) == 0
    dead = Delivery.objects.filter(webhook=webhook)
    assert {(one.status, one.due_at, one.finished_at) for one in dead} == {("dead", None, NOW)}
    assert dead[0].last_error == f"The webhook is {status}."


def test_the_former_secret_signs_until_its_time_is_over(webhook):
    Webhook.objects.update(sealed_former_secret=b"former", former_secret_until=NOW + timedelta(seconds=60))
    due(webhook)
    assert claim_deliveries(1, now=NOW)[0].sealed_former_secret == b"former"
    assert claim_deliveries(1, now=NOW + timedelta(seconds=60))[0].sealed_former_secret is None


# --- the record of a try ------------------------------------------------------------------------------------------------


def test_a_success_ends_a_delivery(webhook):
    due(webhook)
    claimed = claim_deliveries(1, now=NOW)
    assert record(claimed, result(is_success=True, status_code=204, answer="")) == 1
    delivery = Delivery.objects.get()
    assert (delivery.status, delivery.due_at, delivery.finished_at) == ("succeeded", None, NOW)
    assert (delivery.tries, delivery.round_tries, delivery.claimed_until, delivery.last_error) == (1, 1, None, "")
    tried = DeliveryTry.objects.get()
    assert (tried.number, tried.status_code, tried.is_success, tried.duration_ms) == (1, 204, True, 7)


def test_failures_are_repeated_by_the_schedule_and_end_as_a_dead_letter(webhook):
    due(webhook)
    now, pauses = NOW, []
    for _ in range(8):
        (claimed,) = claim_deliveries(1, now=now)
        record([claimed], result(), now=now)
        delivery = Delivery.objects.get()
        if delivery.due_at is not None:
            pauses.append((delivery.due_at - now).total_seconds())
            now = delivery.due_at
    assert pauses == [5, 300, 1800, 7200, 18000, 36000, 36000]
    assert (delivery.status, delivery.tries, delivery.last_error) == ("dead", 8, "The receiver answered.")
    assert list(DeliveryTry.objects.order_by("number").values_list("number", flat=True)) == list(range(1, 9))
    assert claim_deliveries(1, now=now + timedelta(days=9)) == []


def test_retry_after_counts(webhook):
    due(webhook)
    record(claim_deliveries(1, now=NOW), result(status_code=503, retry_after=timedelta(seconds=90)))
    assert Delivery.objects.get().due_at == NOW + timedelta(seconds=90)


def test_a_lost_claim_records_nothing(webhook):
    due(webhook)
    lost = claim_deliveries(1, now=NOW)
    later = NOW + timedelta(seconds=61)
    again = claim_deliveries(1, now=later)
    assert record(lost, result(is_success=True), now=later) == 0
    assert Delivery.objects.get().status == "pending"
    assert record(again, result(is_success=True), now=later) == 1
    assert record(again, result(), now=later) == 0
    assert DeliveryTry.objects.count() == 1


def test_tries_of_two_claims_of_one_delivery_in_one_statement_are_one_try(webhook):
    """The process was too slow for its first claim, and claimed the delivery again while it was still sending."""
    due(webhook)
    later = NOW + timedelta(seconds=61)
    claims = claim_deliveries(1, now=NOW) + claim_deliveries(1, now=later)
    assert [claim.claim_count for claim in claims] == [1, 2]
    assert record(claims, result(), result(is_success=True), now=later) == 1
    assert Delivery.objects.get().status == "succeeded"
    assert [(one.number, one.is_success) for one in DeliveryTry.objects.all()] == [(1, True)]


def test_a_redelivery_begins_a_round_and_numbers_continue(webhook):
    (delivery,) = due(webhook, round_tries=0, tries=8)
    record(claim_deliveries(1, now=NOW), result())
    delivery.refresh_from_db()
    assert (delivery.tries, delivery.round_tries, delivery.due_at) == (9, 1, NOW + timedelta(seconds=5))
    assert DeliveryTry.objects.get().number == 9


def test_a_renewed_claim_lasts_a_minute_from_its_renewal(webhook):
    due(webhook)
    claimed = claim_deliveries(1, now=NOW)
    assert delivery_queue.renew_claims(claimed, now=NOW + delivery_queue.RENEW_AFTER) == 0, (
        "most tries end before: no write for them"
    )
    expired = NOW + timedelta(seconds=61)
    assert delivery_queue.renew_claims(claimed, now=expired) == 1, "no other process has claimed it"
    assert claim_deliveries(1, now=expired + timedelta(seconds=59)) == []
    assert record(claimed, result(is_success=True), now=expired) == 1
    assert delivery_queue.renew_claims(claimed, now=expired + timedelta(seconds=60)) == 0
    assert delivery_queue.renew_claims([]) == 0


def test_a_lost_claim_is_not_renewed(webhook):
    due(webhook)
    lost = claim_deliveries(1, now=NOW)
    claim_deliveries(1, now=NOW + timedelta(seconds=60))
    assert delivery_queue.renew_claims(lost, now=NOW + timedelta(seconds=100)) == 0
    assert Delivery.objects.get().claimed_until == NOW + timedelta(seconds=120)


def test_claims_that_a_process_gives_back_are_due_at_once(webhook):
    due(webhook)
    claimed = claim_deliveries(1, now=NOW)
    delivery_queue.give_back(claimed)
    delivery_queue.give_back([])
    assert len(claim_deliveries(1, now=NOW)) == 1


# --- mail -----------------------------------------------------------------------------------------------------------------


def test_mail_is_claimed_apart(webhook):
    (delivery,) = due(webhook)
    Delivery.objects.filter(pk=delivery.pk).update(webhook=None, recipients=["a@example.com"])
    due(webhook)
    assert [one.webhook_id for one in claim_deliveries(10, now=NOW)] == [webhook.pk]
    (mail,) = claim_mail(4, now=NOW)
    assert (mail.recipients, mail.webhook_id) == (("a@example.com",), None)
    assert claim_mail(4, now=NOW) == []
    assert claim_mail(0, now=NOW) == []
    record([mail], result())
    assert Delivery.objects.get(webhook=None).due_at == NOW + timedelta(seconds=5)


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_claims_at_the_same_time_get_each_delivery_once_and_no_webhook_more_than_its_places():
    webhooks = [make_webhook(OrganizationFactory()) for _ in range(4)]
    for webhook in webhooks:
        due(webhook, 40)
    claimed, barrier = [], threading.Barrier(4)

    def claim():
        try:
            barrier.wait(30)
            for _ in range(10):
                claimed.extend(claim_deliveries(7, now=NOW))
        finally:
            connection.close()

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    while more := claim_deliveries(7, now=NOW):  # what all of them have left to one another
        claimed += more
    assert len({one.id for one in claimed}) == len(claimed)
    by_webhook = [sum(one.webhook_id == webhook.pk for one in claimed) for webhook in webhooks]
    assert by_webhook == [10] * 4
