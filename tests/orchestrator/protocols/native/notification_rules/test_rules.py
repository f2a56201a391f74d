"""`/v1/notification-rules`: conditions, one receiver, and no mail to strangers."""

import pytest

from orchestrator.webhooks import notification_rules as operations
from orchestrator.webhooks.models import NotificationRule
from runtime_jobs.models import Membership, OperatorEvent
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, api_token
from tests.orchestrator.webhooks.world import make_webhook

pytestmark = pytest.mark.django_db
RULES = "/v1/notification-rules"


@pytest.fixture
def webhook(organization):
    return make_webhook(organization)


def body(webhook=None, **changes):
    values = {"org_slug": "sandtrace", "name": "failures", "event_types": ["job.failed"]}
    return values | ({"webhook_id": webhook.webhook_ulid} if webhook else {}) | changes


@pytest.fixture
def mail(settings, organization, django_user_model):
    settings.EMAIL_HOST = "127.0.0.1"
    settings.NOTIFICATION_DOMAINS = ["Example.com"]
    member = django_user_model.objects.create_user("ivan", email="Ivan@home.test")
    Membership.objects.create(user=member, organization=organization)


def test_a_rule_is_created_changed_and_deleted(alice, webhook):
    made = alice.post(
        RULES, body(webhook, priority_from="high", failure_classes=["worker", "worker"], projects=["web"])
    )
    assert made.status_code == 201, made.content
    rule = made.json()
    assert made["Location"] == f"{RULES}/{rule['rule_id']}"
    assert (rule["priority_from"], rule["failure_classes"], rule["projects"]) == ("high", ["worker"], ["web"])
    assert (rule["is_enabled"], rule["gather_seconds"], rule["recipients"]) == (True, 60, [])
    path = f"{RULES}/{rule['rule_id']}"
    assert alice.get(path).json() == rule
    assert alice.get(f"{RULES}?org_slug=sandtrace").json()["results"] == [rule]
    changed = alice.call("PATCH", path, {"is_enabled": False, "priority_from": None}).json()
    assert (changed["is_enabled"], changed["priority_from"], changed["projects"]) == (False, None, ["web"])
    event = OperatorEvent.objects.get(action="notification_rule.changed")
    assert (event.before, event.after) == (
        {"is_enabled": True, "priority_from": 250}, {"is_enabled": False, "priority_from": None},
    )  # fmt: skip
    assert alice.call("DELETE", path).status_code == 204
    refused(lambda: alice.get(path), 404, "not_found")


def test_mail_replaces_a_webhook_and_the_reverse(alice, webhook, mail):
    path = f"{RULES}/{alice.post(RULES, body(webhook)).json()['rule_id']}"
    mailed = alice.call("PATCH", path, {"recipients": ["a@example.com"]}).json()
    assert (mailed["recipients"], mailed["webhook_id"]) == (["a@example.com"], None)
    back = alice.call("PATCH", path, {"webhook_id": webhook.webhook_ulid}).json()
    assert (back["recipients"], back["webhook_id"]) == ([], webhook.webhook_ulid)


def test_mail_goes_to_members_and_permitted_domains(alice, mail):
    assert alice.post(RULES, body(recipients=["ivan@home.test", "team@EXAMPLE.com"])).status_code == 201
    problem = refused(
        lambda: alice.post(RULES, body(name="x", recipients=["a@example.com", "eve@elsewhere.test"])), 400, "invalid"
    )
    assert "eve@elsewhere.test" in problem["errors"]["recipients"][0]
    assert "a@example.com" not in problem["errors"]["recipients"][0]


def test_without_a_mail_server_no_rule_sends_mail(alice, mail, settings):
    settings.EMAIL_HOST = ""
    refused(lambda: alice.post(RULES, body(recipients=["ivan@home.test"])), 400, "invalid")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"event_types": []}, "event_types"),
        ({"event_types": ["job.exploded"]}, "event_types"),
        ({"job_types": ["unknown"]}, "job_types"),
        ({"projects": ["A b"]}, "projects"),
        ({"failure_classes": ["mine"]}, "failure_classes"),
        ({"priority_from": "urgent"}, "priority_from"),
        ({"gather_seconds": -1}, "gather_seconds"),
        ({"gather_seconds": 86_401}, "gather_seconds"),
        ({"name": ""}, "name"),
        ({"webhook_id": None}, "webhook_id"),
        ({"webhook_id": "whk_x"}, "webhook_id"),
        ({"webhook_id": "whk_" + "0" * 26}, "webhook_id"),
        ({"recipients": ["no address"]}, "recipients"),
        ({"recipients": ["a@example.com"]}, "recipients"),
        ({"recipients": ["a@example.com\r\nBcc: b@example.com"]}, "recipients"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_bad_rule_is_refused_by_its_field(alice, webhook, mail, changes, field):
    response = alice.post(RULES, body(webhook, **changes))
    assert response.status_code == 400
    assert field in {name.partition(".")[0] for name in response.json()["errors"]}
    assert not NotificationRule.objects.exists()


def test_a_webhook_of_another_organization_is_no_receiver(alice):
    foreign = make_webhook(OrganizationFactory())
    problem = refused(lambda: alice.post(RULES, body(foreign)), 400, "invalid")
    missing = refused(lambda: alice.post(RULES, body(webhook_id="whk_" + "0" * 26)), 400, "invalid")
    assert problem["errors"] == missing["errors"]


def test_a_name_is_used_once_and_rules_are_bounded(alice, webhook, monkeypatch):
    alice.post(RULES, body(webhook))
    refused(lambda: alice.post(RULES, body(webhook)), 409, "conflict")
    monkeypatch.setattr(operations, "MAX_RULES", 1)
    refused(lambda: alice.post(RULES, body(webhook, name="other")), 409, "conflict")


def test_a_repeated_creation_returns_the_first_rule(alice, webhook):
    key = {"Idempotency-Key": "k"}
    first, again = (alice.post(RULES, body(webhook), **key) for _ in range(2))
    assert (again.status_code, again["Idempotency-Replayed"], again.json()) == (201, "true", first.json())


def test_a_deleted_webhook_takes_its_rules_along(alice, webhook):
    alice.post(RULES, body(webhook))
    alice.call("DELETE", f"/v1/webhooks/{webhook.webhook_ulid}")
    assert not NotificationRule.objects.exists()


def test_the_scope_is_needed_and_strangers_see_nothing(alice, webhook, wendy, organization):
    path = f"{RULES}/{alice.post(RULES, body(webhook)).json()['rule_id']}"
    blind = Caller(api_token(organization, tuple(scope for scope in Scope.values if scope != "orch:operate")))
    stranger = Caller(api_token(OrganizationFactory()))
    for caller, status, code in (
        (blind, 403, "insufficient_scope"), (wendy, 403, "wrong_principal"), (stranger, 404, "not_found"),
    ):  # fmt: skip
        refused(lambda caller=caller: caller.get(path), status, code)
        refused(lambda caller=caller: caller.call("PATCH", path, {"is_enabled": False}), status, code)
        refused(lambda caller=caller: caller.call("DELETE", path), status, code)
        refused(lambda caller=caller: caller.post(RULES, body(name="x", webhook_id="whk_" + "0" * 26)), status, code)
    assert stranger.get(RULES).json()["results"] == []
