"""Events become deliveries: each once, for the webhooks that want them, in the transaction that moves the position."""

import threading
from datetime import timedelta

import orjson
import pytest
from django.db import connection, transaction

from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import Place, read_page
from orchestrator.services import cancellation
from orchestrator.webhooks import distribution
from orchestrator.webhooks.distribution import distribute_page
from orchestrator.webhooks.models import Delivery, DispatchPosition, Webhook, WebhookStatus
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import JobEvent
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, submitted
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.webhooks.world import make_webhook

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project(db):
    distribute_page()  # the position is at the present
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


def distributed(**options):
    """Turn all events that there are."""
    wait_for_older_transactions()
    while (page := distribute_page(**options)) is not None and not page.is_complete:
        pass


def types(webhook):
    return list(Delivery.objects.filter(webhook=webhook).order_by("id").values_list("event_type", flat=True))


def test_an_event_is_delivered_as_its_envelope(project):
    webhook = make_webhook(project.organization)
    job = submitted(project)
    distributed()
    delivery = Delivery.objects.get()
    event = JobEvent.objects.get()
    assert (delivery.webhook_id, delivery.event_id) == (webhook.pk, uuid_of(event.event_ulid))
    assert (delivery.event_type, delivery.job_type, delivery.job_uuid) == (
        "job.queued",
        "runtime",
        uuid_of(job.job_ulid),
    )
    assert (delivery.status, delivery.org_slug) == ("pending", "sandtrace")
    assert delivery.due_at is not None
    page = read_page(Place(0), organizations=["sandtrace"], rows=10)
    assert orjson.loads(delivery.body) == envelope_of(page.events[0])


def test_an_event_is_delivered_once_to_each_webhook_that_wants_it(project):
    every, failures = (
        make_webhook(project.organization),
        make_webhook(project.organization, event_types=("job.failed",)),
    )
    steps = make_webhook(project.organization, job_types=("steps",))
    foreign = make_webhook(OrganizationFactory(slug="intruder"))
    job = submitted(project)
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    for _ in range(3):
        distributed()
    assert types(every) == ["job.queued", "job.canceled"]
    assert [types(webhook) for webhook in (failures, steps, foreign)] == [[], [], []]


def test_events_before_the_webhook_are_not_sent(project):
    submitted(project)
    webhook = make_webhook(project.organization)
    submitted(project)
    distributed()
    assert types(webhook) == ["job.queued"]


def test_a_paused_webhook_gets_dead_letters_and_a_disabled_one_nothing(project):
    paused, disabled = make_webhook(project.organization), make_webhook(project.organization)
    Webhook.objects.filter(pk=paused.pk).update(status=WebhookStatus.PAUSED)
    Webhook.objects.filter(pk=disabled.pk).update(status=WebhookStatus.DISABLED)
    submitted(project)
    distributed()
    delivery = Delivery.objects.get()
    assert (delivery.webhook_id, delivery.status, delivery.due_at) == (paused.pk, "dead", None)
    assert "paused" in delivery.last_error


def test_pages_follow_one_another(project):
    webhook = make_webhook(project.organization)
    for _ in range(7):
        submitted(project)
    wait_for_older_transactions()
    pages = []
    while not pages or not pages[-1].is_complete:
        pages.append(distribute_page(rows=3))
    assert sum(page.deliveries for page in pages) == 7
    assert len(types(webhook)) == 7


@pytest.mark.parametrize("step", ["the deliveries", "the position"])
def test_the_position_moves_with_the_deliveries_or_not_at_all(project, monkeypatch, step):
    webhook = make_webhook(project.organization)
    submitted(project)
    wait_for_older_transactions()
    before = DispatchPosition.objects.values("stamp", "event_id").get()

    def fail(*_, **__):
        raise RuntimeError("killed")

    if step == "the position":
        monkeypatch.setattr(distribution, "move_position", fail)
    else:
        monkeypatch.setattr(Delivery.objects, "bulk_create", fail)
    with pytest.raises(RuntimeError):
        distribute_page()
    monkeypatch.undo()
    assert types(webhook) == []
    assert DispatchPosition.objects.values("stamp", "event_id").get() == before
    distributed()
    assert types(webhook) == ["job.queued"]


def test_one_process_at_a_time_distributes(project):
    has_lock, may_end = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(16, 0)")
                has_lock.set()
                may_end.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    has_lock.wait(60)
    try:
        assert distribute_page() is None
    finally:
        may_end.set()
        thread.join(60)
    assert distribute_page() is not None


def test_an_event_of_an_open_transaction_is_sent_when_it_is_committed(project):
    """Its stamp may be below those of events that were committed before it."""
    webhook = make_webhook(project.organization)
    has_begun, may_commit = threading.Event(), threading.Event()

    def write_slowly():
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
                has_begun.set()
                may_commit.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=write_slowly)
    thread.start()
    has_begun.wait(60)
    try:
        submitted(project)
        assert distribute_page().is_complete
        assert types(webhook) == []
    finally:
        may_commit.set()
        thread.join(60)
    distributed()
    assert types(webhook) == ["job.queued"]


def test_an_idle_process_writes_its_beat_once_a_second(project):
    now = database_now()
    distribute_page(now=now)
    first = DispatchPosition.objects.get().beat_at
    distribute_page(now=first + timedelta(milliseconds=900))
    assert DispatchPosition.objects.get().beat_at == first
    distribute_page(now=first + timedelta(seconds=1))
    assert DispatchPosition.objects.get().beat_at == first + timedelta(seconds=1)


def test_a_webhook_that_is_created_while_a_page_is_read_gets_its_events(project, monkeypatch):
    made = []
    read = distribution.read_page

    def make():
        try:
            made.append(make_webhook(project.organization))
            submitted(project)
            wait_for_older_transactions()
        finally:
            connection.close()

    def read_later(after, **options):
        if not made:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join(60)
        return read(after, **options)

    monkeypatch.setattr(distribution, "read_page", read_later)
    distributed()
    assert types(made[0]) == ["job.queued"]
