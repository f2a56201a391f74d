"""The dispatcher process against real receivers: signed, repeated, killed, and many at once."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import pytest
from django.core import mail as outbox_of
from standardwebhooks import Webhook as Receiver

from config.paths import BASE_DIR
from orchestrator.core.cause import Cause
from orchestrator.core.metrics_models import Count
from orchestrator.processes.dispatcher import DispatcherProcess
from orchestrator.webhooks import deliveries, mail
from orchestrator.webhooks.distribution import distribute_page
from orchestrator.webhooks.models import Delivery, DeliveryTry, NotificationRule, Webhook
from orchestrator.webhooks.operations import rotate_webhook_key, webhook_secret
from orchestrator.webhooks.sender import Sender, TryResult
from runtime_jobs.db_time import database_now
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, submitted
from tests.live_server import eventually
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.webhooks.receivers import LOOPBACK
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

pytestmark = pytest.mark.django_db(transaction=True)
DELIVERIES = int(os.environ.get("PROOF_DELIVERIES", "800"))  # 10,000 in `make proof`


class Hook:
    """A receiver in a thread. `statuses` has the answer of each request; the last one is repeated."""

    def __init__(self, *statuses):
        self.statuses = list(statuses) or [204]
        self.requests = []
        self.before_answer = lambda _headers: None
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                hook.requests.append((headers, body))
                hook.before_answer(headers)
                status = hook.statuses[min(len(hook.requests), len(hook.statuses)) - 1]
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def end(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    @property
    def ids(self):
        return [headers["webhook-id"] for headers, _ in self.requests]


@pytest.fixture(autouse=True)
def opened(settings):
    settings.WEBHOOK_NETWORKS = [LOOPBACK]


@pytest.fixture
def hook():
    made = []

    def make(*statuses):
        made.append(Hook(*statuses))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def process():
    return DispatcherProcess(connections=50, poll_seconds=0.02)


@contextmanager
def running(process):
    thread = threading.Thread(target=process.run)
    thread.start()
    try:
        yield thread
    finally:
        process.stop()
        thread.join(60)
    assert not thread.is_alive()


def test_an_event_reaches_a_receiver_of_the_standard(hook, process):
    receiver = hook()
    distribute_page()
    project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))
    webhook = make_webhook(project.organization, url=receiver.url)
    submitted(project)
    wait_for_older_transactions()
    assert process.run_due() == 1
    ((headers, body),) = receiver.requests
    envelope = Receiver(webhook_secret(webhook)).verify(body, headers)
    assert (envelope["eventType"], envelope["tenant"]) == ("job.queued", "sandtrace")
    assert headers["webhook-id"] == envelope["eventId"] == str(UUID(envelope["eventId"]))
    assert Delivery.objects.get().status == "succeeded"
    assert process.run_due() == 0


def test_both_secrets_sign_during_a_rotation(hook, process):
    receiver = hook()
    webhook = make_webhook(url=receiver.url)
    former = webhook_secret(webhook)
    current = webhook_secret(rotate_webhook_key(webhook_ulid=webhook.webhook_ulid, cause=Cause(ALICE)))
    deliveries.send_test(webhook_ulid=webhook.webhook_ulid, cause=Cause(ALICE))
    process.run_due()
    ((headers, body),) = receiver.requests
    for secret in (former, current):
        Receiver(secret).verify(body, headers)
    Webhook.objects.update(former_secret_until=database_now() - timedelta(seconds=1))
    deliveries.send_test(webhook_ulid=webhook.webhook_ulid, cause=Cause(ALICE))
    process.run_due()
    headers, body = receiver.requests[1]
    assert len(headers["webhook-signature"].split()) == 1
    Receiver(current).verify(body, headers)


def test_two_failures_are_three_tries_under_one_id(hook, process):
    receiver = hook(500, 503, 204)
    make_deliveries(make_webhook(url=receiver.url))
    now = database_now()
    tries = [process.run_due(now=now + timedelta(hours=hours)) for hours in range(4)]
    assert tries == [1, 1, 1, 0]
    assert len(receiver.requests) == 3
    assert len(set(receiver.ids)) == 1
    found = DeliveryTry.objects.order_by("number").values_list("status_code", flat=True)
    assert list(found) == [500, 503, 204]


def test_410_disables_and_301_is_not_followed(hook, process):
    target, gone = hook(), hook(410)
    moved = hook(301)
    for receiver in (gone, moved):
        make_deliveries(make_webhook(OrganizationFactory(), url=receiver.url), 1)
    process.run_due()
    statuses = dict(Webhook.objects.values_list("url", "status"))
    assert (statuses[gone.url], statuses[moved.url]) == ("disabled", "active")
    assert target.requests == []
    assert set(Delivery.objects.values_list("webhook__url", "status")) == {(gone.url, "dead"), (moved.url, "pending")}


def test_dead_letters_are_sent_again_under_their_ids(hook, process):
    receiver = hook(204)
    webhook = make_webhook(url=receiver.url)
    rows = make_deliveries(webhook, 3, status="dead", due_at=None, finished_at=database_now(), tries=8)
    deliveries.redeliver_many(webhook_ulid=webhook.webhook_ulid, since=None, cause=Cause(ALICE))
    assert process.run_due() == 3
    assert sorted(receiver.ids) == sorted(str(row.event_id) for row in rows)


def test_a_secret_that_cannot_be_opened_is_a_failure(hook, process):
    receiver = hook()
    make_deliveries(make_webhook(url=receiver.url))
    Webhook.objects.update(sealed_secret=b"damaged")
    process.run_due()
    assert "cannot be opened" in DeliveryTry.objects.get().sentence
    assert receiver.requests == []


def test_mail_is_sent_by_the_same_process(process, settings):
    settings.NOTIFICATION_DOMAINS = ["example.com"]
    organization = OrganizationFactory(slug="sandtrace")
    project = ProjectFactory(organization=organization)
    distribute_page()
    NotificationRule.objects.create(
        organization=organization,
        name="all",
        event_types=["job.queued"],
        recipients=["a@example.com"],
        gather_seconds=0,
    )
    submitted(project)
    wait_for_older_transactions()
    assert process.run_due() == 1
    assert outbox_of.outbox[0].subject == "[sandtrace] job.queued"
    assert Delivery.objects.get().status == "succeeded"


def test_a_mail_that_takes_longer_than_a_claim_is_sent_and_recorded_once(process, monkeypatch):
    sent, may_end = [], threading.Event()

    def send_slowly(recipients, _body):
        sent.append(recipients)
        may_end.wait(60)
        return TryResult(database_now(), 75_000, is_success=True, sentence="The mail was handed to the mail server.")

    monkeypatch.setattr(mail, "send_mail", send_slowly)
    (delivery,) = make_deliveries(make_webhook())
    Delivery.objects.update(webhook=None, recipients=["a@example.com"])
    with running(process):
        eventually(lambda: sent)
        soon = database_now() + timedelta(seconds=5)
        Delivery.objects.update(claimed_until=soon)
        try:
            eventually(lambda: Delivery.objects.filter(claimed_until__gt=soon).exists())
            assert len(sent) == 1
        finally:
            may_end.set()
        eventually(lambda: Delivery.objects.filter(status="succeeded").exists())
    delivery.refresh_from_db()
    assert (delivery.claim_count, delivery.tries, sent) == (1, 1, [("a@example.com",)])


def test_the_loops_send_and_record_until_they_are_stopped(hook, process):
    receiver = hook()
    distribute_page()
    project = ProjectFactory()
    make_webhook(project.organization, url=receiver.url)
    with running(process):
        for _ in range(5):
            submitted(project)
        eventually(lambda: Delivery.objects.filter(status="succeeded").count() == 5)
    assert len(set(receiver.ids)) == len(receiver.ids) == 5
    assert Count.objects.get(name="deliveries", detail="succeeded").value == 5


def test_a_stop_records_what_is_being_sent(hook, process):
    receiver = hook()
    may_answer = threading.Event()
    receiver.before_answer = lambda _: may_answer.wait(30)
    make_deliveries(make_webhook(url=receiver.url))
    with running(process):
        eventually(lambda: receiver.requests)
        process.stop()
        may_answer.set()
    assert Delivery.objects.get().status == "succeeded"


def test_silence_of_one_receiver_holds_up_no_other_one(hook):
    silent, good = hook(), hook()
    may_answer = threading.Event()
    silent.before_answer = lambda _: may_answer.wait(60)
    process = DispatcherProcess(connections=20, sender=Sender(answer_seconds=60), poll_seconds=0.02)
    make_deliveries(make_webhook(OrganizationFactory(), url=silent.url), 30)
    with running(process):
        eventually(lambda: len(silent.requests) == 10)
        make_deliveries(make_webhook(OrganizationFactory(), url=good.url), 30)
        eventually(lambda: len(good.requests) == 30)
        assert len(silent.requests) == 10
        may_answer.set()


def dispatcher(database_url, log):
    environment = {**os.environ, "DATABASE_URL": database_url, "WEBHOOK_NETWORKS": LOOPBACK}
    command = [sys.executable, "manage.py", "rundispatcher"]
    return subprocess.Popen(command, cwd=BASE_DIR, env=environment, stdout=log, stderr=log)


def lose_claims():
    """End the time of all claims. Each row is a transaction of its own: dispatchers record many rows in one."""
    for key in Delivery.objects.filter(claimed_until__isnull=False, due_at__isnull=False).values_list("pk", flat=True):
        Delivery.objects.filter(pk=key, claimed_until__isnull=False).update(claimed_until=database_now())


@pytest.mark.slow
def test_a_process_that_is_killed_between_the_post_and_its_record_sends_again(hook, database_url, tmp_path):
    receiver = hook()
    make_deliveries(make_webhook(url=receiver.url))
    with (tmp_path / "log").open("ab") as log:
        first = dispatcher(database_url, log)
        receiver.before_answer = lambda _: first.kill()
        assert first.wait(120) == -signal.SIGKILL
        receiver.before_answer = lambda _: None
        Delivery.objects.update(claimed_until=database_now())  # the claim's minute is over
        second = dispatcher(database_url, log)
        try:
            eventually(lambda: Delivery.objects.get().status == "succeeded", 120)
        finally:
            second.terminate()
            assert second.wait(60) == 0, (tmp_path / "log").read_text()
    assert len(receiver.requests) == 2
    assert len(set(receiver.ids)) == 1
    assert receiver.requests[0][1] == receiver.requests[1][1]


@pytest.mark.slow
def test_two_dispatchers_send_everything_and_one_is_killed(hook, database_url, tmp_path):
    receivers = [hook() for _ in range(10)]
    expected = Counter()
    for receiver in receivers:
        rows = make_deliveries(make_webhook(OrganizationFactory(), url=receiver.url), DELIVERIES // len(receivers))
        expected.update(str(row.event_id) for row in rows)
    with (tmp_path / "log").open("ab") as log:
        processes = [dispatcher(database_url, log) for _ in range(2)]
        try:
            eventually(lambda: Delivery.objects.filter(status="succeeded").count() > DELIVERIES // 8, 120)
            processes[0].kill()
            processes[0].wait(60)
            lose_claims()
            eventually(lambda: not Delivery.objects.exclude(status="succeeded").exists(), 180 + DELIVERIES / 20)
        finally:
            for process in processes:
                process.terminate()
                process.wait(60)
    received = Counter(name for receiver in receivers for name in receiver.ids)
    assert set(received) == set(expected)
    assert DeliveryTry.objects.filter(is_success=True).count() == len(expected)


def test_a_log_line_has_no_secret_and_no_body(hook, process, caplog):
    receiver = hook()
    webhook = make_webhook(url=receiver.url)
    make_deliveries(webhook, body=json.dumps({"token": "hunter2"}))
    with caplog.at_level("INFO"):
        process.run_due()
    assert webhook.webhook_ulid in caplog.text
    assert "hunter2" not in caplog.text
    assert "whsec_" not in caplog.text
