"""Notifications: events that match a rule, gathered by key with a count, by webhook or by mail."""

from datetime import UTC, datetime, timedelta

import orjson
import pytest
from django.core import mail as outbox_of
from django.core.mail.backends import locmem

from orchestrator.core.cause import Cause
from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import Place, StoredEvent
from orchestrator.incidents import incident_mode
from orchestrator.services import job_end
from orchestrator.webhooks.mail import mail_text, send_mail
from orchestrator.webhooks.models import Delivery, GatheredNotification, NotificationRule
from orchestrator.webhooks.notifications import NO_JOB, gather, matches, send_gathered
from runtime_jobs.identifiers import new_event_id, new_job_id
from runtime_jobs.models import Membership
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.states import FailureReason
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.webhooks.world import make_webhook

pytestmark = pytest.mark.django_db
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def permitted_domain(settings):
    settings.NOTIFICATION_DOMAINS = ["example.com"]


@pytest.fixture
def organization(db):
    return OrganizationFactory(slug="sandtrace")


@pytest.fixture
def webhook(organization):
    return make_webhook(organization)


def make_rule(organization, webhook=None, **changes):
    values = {
        "name": "failures",
        "event_types": ["job.failed"],
        "webhook": webhook,
        "created_at": NOW,
        "updated_at": NOW,
    }
    values |= {} if webhook else {"recipients": ["a@example.com", "b@example.com"]}
    return NotificationRule.objects.create(organization=organization, **values | changes)


def failed(**changes):
    job = changes.pop("job_id", None) or new_job_id()
    values = {
        "place": Place(7, 0, 1), "event_id": new_event_id(), "event_type": "job.failed", "created_at": NOW,
        "org_slug": "sandtrace", "job_type": "runtime", "correlation_id": "x", "actor": "worker:w", "details": {},
        "job_id": job, "root_job_id": job, "attempt": 1, "seq": 5, "state": "failed", "hash": "b" * 64,
    }  # fmt: skip
    return StoredEvent(**values | changes)


def gathered(*events, now=NOW):
    return gather(events, {event.event_id: envelope_of(event) for event in events}, now=now)


def payload_of(delivery):
    return orjson.loads(delivery.body)["payload"]


def test_events_with_one_key_are_gathered_with_a_count(organization, webhook):
    rule = make_rule(organization, webhook, gather_seconds=60)
    first, second = failed(), failed(created_at=NOW + timedelta(seconds=1))
    assert gathered(first, second) == []
    assert gathered(failed(created_at=NOW + timedelta(seconds=2)), now=NOW + timedelta(seconds=30)) == []
    gathered(failed(job_type="steps"))
    assert send_gathered(now=NOW + timedelta(seconds=59)) == 0
    assert send_gathered(now=NOW + timedelta(seconds=60)) == 2
    runtime, steps = sorted(Delivery.objects.all(), key=lambda one: one.job_type)
    assert (runtime.event_type, runtime.webhook_id, runtime.status) == ("notification", webhook.pk, "pending")
    payload = payload_of(runtime)
    assert payload["count"] == 3
    assert payload["rule"] == {"id": rule.rule_ulid, "name": "failures"}
    assert (payload["firstEventAt"], payload["lastEventAt"]) == ("2030-01-01T00:00:00Z", "2030-01-01T00:00:02Z")
    assert payload["lastEvent"]["eventType"] == "job.failed"
    assert payload_of(steps)["count"] == 1
    assert not GatheredNotification.objects.exists()


def test_a_notification_has_the_members_of_an_envelope(organization, webhook):
    make_rule(organization, webhook, gather_seconds=0)
    event = failed()
    (delivery,) = gathered(event)
    assert set(orjson.loads(delivery.body)) == set(envelope_of(event))
    assert orjson.loads(delivery.body)["eventId"] == str(delivery.event_id)


@pytest.mark.parametrize("gather_seconds", [0, 60])
@pytest.mark.parametrize("lost", ["membership", "account", "address"])
def test_who_has_left_the_organization_gets_no_mail(organization, django_user_model, lost, gather_seconds):
    eve, mia = (django_user_model.objects.create_user(name, email=f"{name}@home.test") for name in ("eve", "mia"))
    memberships = [Membership.objects.create(user=user, organization=organization) for user in (eve, mia)]
    for number, recipients in enumerate((["eve@home.test"], ["Eve@home.test", "Mia@home.test", "a@example.com"])):
        make_rule(organization, name=f"rule-{number}", recipients=recipients, gather_seconds=gather_seconds)

    def received(at):
        found = gathered(failed(created_at=at), now=at)
        send_gathered(now=at + timedelta(seconds=gather_seconds))
        rows = found or list(Delivery.objects.order_by("pk"))
        Delivery.objects.all().delete()
        return sorted(row.recipients for row in rows)

    assert received(NOW) == [["Eve@home.test", "Mia@home.test", "a@example.com"], ["eve@home.test"]]
    if lost == "membership":
        memberships[0].delete()
    else:
        values = {"is_active": False} if lost == "account" else {"email": "eve@elsewhere.test"}
        django_user_model.objects.filter(pk=eve.pk).update(**values)
    assert received(NOW + timedelta(hours=1)) == [["Mia@home.test", "a@example.com"]]


def test_without_a_time_nothing_is_gathered(organization, webhook):
    make_rule(organization, webhook, gather_seconds=0)
    assert [payload_of(one)["count"] for one in gathered(failed(), failed())] == [1, 1]


def test_in_incident_mode_nothing_is_gathered_and_what_waits_is_sent(organization, webhook):
    make_rule(organization, webhook, gather_seconds=60)
    other = OrganizationFactory(slug="other")
    make_rule(other, recipients=["a@example.com"], gather_seconds=60)
    assert gathered(failed(), failed(), failed(org_slug="other")) == []
    assert send_gathered(now=NOW) == 0

    until = NOW + timedelta(hours=1)
    incident_mode.begin_incident_mode(org_slug="sandtrace", cause=Cause(ALICE, "a leak", now=NOW), until=until)
    assert send_gathered(now=NOW) == 1
    assert payload_of(Delivery.objects.get())["count"] == 2
    assert [payload_of(one)["count"] for one in gathered(failed(), failed())] == [1, 1]
    assert gathered(failed(org_slug="other")) == []

    assert gathered(failed(), now=until) == [], "the mode has ended"
    incident_mode.end_incident_mode(org_slug="sandtrace", cause=Cause(ALICE, "found", now=NOW))
    assert gathered(failed(), now=NOW) == []


def test_rules_of_others_disabled_ones_and_earlier_events_do_not_count(organization, webhook):
    make_rule(organization, webhook, is_enabled=False)
    make_rule(OrganizationFactory(), recipients=["a@example.com"])
    make_rule(organization, webhook, name="late", created_at=NOW + timedelta(seconds=1))
    gathered(failed())
    assert not GatheredNotification.objects.exists()


@pytest.mark.parametrize(
    ("terms", "changes", "is_match"),
    [
        ({}, {}, True),
        ({"event_types": ["job.canceled"]}, {}, False),
        ({"job_types": ["steps"]}, {}, False),
        ({"job_types": ["runtime"]}, {}, True),
        ({"projects": ["web"]}, {}, True),
        ({"projects": ["api"]}, {}, False),
        ({"failure_classes": ["worker"]}, {}, True),
        ({"failure_classes": ["job"]}, {}, False),
        ({"failure_classes": ["worker"], "event_types": ["job.queued"]}, {"event_type": "job.queued"}, False),
        ({"priority_from": PRIORITIES["team"]}, {}, True),
        ({"priority_from": PRIORITIES["high"]}, {}, False),
    ],
)
def test_all_conditions_must_match(organization, webhook, terms, changes, is_match):
    submitted(ProjectFactory(organization=organization))  # with the priority of the plan team
    worker = WorkerFactory()
    taken = claimed(worker)
    job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR, message="x")
    make_rule(organization, webhook, gather_seconds=0, **terms)
    assert len(gathered(failed(job_id=taken.job.job_ulid, **changes))) == is_match


def test_an_event_without_a_job_has_no_project_and_no_priority(organization):
    event = failed(event_type="breaker.opened", job_id=None)
    rule = NotificationRule(event_types=["breaker.opened"])
    assert matches(rule, event, NO_JOB)
    for name, value in (("projects", ["web"]), ("failure_classes", ["worker"]), ("priority_from", 0)):
        other = NotificationRule(event_types=["breaker.opened"], **{name: value})
        assert not matches(other, event, NO_JOB)


# --- mail -----------------------------------------------------------------------------------------------------------------


def test_a_rule_with_recipients_sends_mail_that_names_no_other_recipient(organization, monkeypatch):
    make_rule(organization, gather_seconds=0)
    (delivery,) = gathered(failed())
    assert (delivery.webhook, delivery.recipients) == (None, ["a@example.com", "b@example.com"])
    result = send_mail(tuple(delivery.recipients), delivery.body)
    assert result.is_success
    (sent,) = outbox_of.outbox
    assert (sent.to, sent.bcc) == ([], ["a@example.com", "b@example.com"])
    assert sent.subject == "[sandtrace] job.failed"
    assert "a@example.com" not in sent.message().as_string()


def test_a_mail_that_fails_is_a_sentence(monkeypatch):
    def refuse(*_):
        raise ConnectionRefusedError

    monkeypatch.setattr(locmem.EmailBackend, "send_messages", refuse)
    envelope = {"tenant": "t", "payload": {"rule": {"name": "r"}, "count": 1, "firstEventAt": "", "lastEventAt": ""}}
    envelope["payload"]["lastEvent"] = envelope_of(failed())
    result = send_mail(("a@example.com",), orjson.dumps(envelope).decode())
    assert (result.is_success, result.status_code) == (False, None)
    assert result.sentence == "The mail server cannot be reached, or closed the connection."


def test_control_characters_reach_no_subject_and_no_text():
    last = envelope_of(failed(details={"message": "\x1b[31m\u202e"}))
    envelope = {
        "tenant": "t\r\nBcc: eve@example.com",
        "payload": {
            "rule": {"name": "a\x1bb"}, "count": 3, "firstEventAt": "x", "lastEventAt": "y", "lastEvent": last,
        },
    }  # fmt: skip
    subject, text = mail_text(envelope)
    assert subject.isprintable()
    assert subject.endswith("job.failed (3 times)")
    assert not {"\x1b", "\u202e", "\r"} & set(text)
