"""`/v1/webhooks`: created with a secret that is displayed once, changed, rotated, deleted, and closed to others."""

import base64
from datetime import timedelta

import pytest

from orchestrator.core.sealing import SealedValueError, unseal
from orchestrator.incidents.models import Incident
from orchestrator.webhooks.models import Delivery, Webhook, WebhookStatus
from orchestrator.webhooks.operations import OVERLAP, WEBHOOK_KEY
from orchestrator.webhooks.signatures import secret_text
from runtime_jobs.models import OperatorEvent
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, api_token
from tests.orchestrator.webhooks.world import URL, make_webhook

pytestmark = pytest.mark.django_db
BODY = {"org_slug": "sandtrace", "url": URL}


def created(caller, **changes):
    response = caller.post("/v1/webhooks", BODY | changes)
    assert response.status_code == 201, response.content
    return response.json()


def test_a_webhook_is_created_with_a_secret_that_no_other_answer_has(alice):
    response = alice.post(
        "/v1/webhooks", BODY | {"event_types": ["job.failed", "job.failed"], "job_types": ["runtime"]}
    )
    made = response.json()
    assert (response.status_code, response["Location"]) == (201, f"/v1/webhooks/{made['webhook_id']}")
    assert len(base64.b64decode(made["secret"].removeprefix("whsec_"))) == 32
    assert (made["event_types"], made["job_types"], made["status"]) == (["job.failed"], ["runtime"], "active")
    assert made["updated_by"] == {"kind": "client", "id": "token test"}
    shown = alice.get(f"/v1/webhooks/{made['webhook_id']}")
    assert shown.json() == {name: value for name, value in made.items() if name != "secret"}
    listed = alice.get("/v1/webhooks").json()["results"]
    assert listed == [shown.json()]
    changed = alice.call("PATCH", f"/v1/webhooks/{made['webhook_id']}", {"description": "x"})
    for answer in (shown, changed):
        assert b"whsec_" not in answer.content
    assert made["secret"] not in str(list(OperatorEvent.objects.values()))


def test_the_secret_is_sealed_in_its_place(alice):
    made = created(alice)
    webhook, other = Webhook.objects.get(), make_webhook(OrganizationFactory())
    key = unseal(WEBHOOK_KEY, webhook.sealed_secret, context=webhook.sealing_context)
    assert secret_text(key) == made["secret"]
    with pytest.raises(SealedValueError):
        unseal(WEBHOOK_KEY, webhook.sealed_secret, context=other.sealing_context)
    with pytest.raises(SealedValueError):
        unseal(WEBHOOK_KEY, webhook.sealed_secret, context=webhook.former_sealing_context)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1",
        "https://169.254.169.254",
        "https://[::ffff:10.0.0.1]",
        "https://2130706433",
        "https://a@b.c/",
    ],
)
def test_a_blocked_url_is_refused_and_nothing_is_stored(alice, url):
    problem = refused(lambda: alice.post("/v1/webhooks", BODY | {"url": url}), 400, "blocked_url")
    assert list(problem["errors"]) == ["url"]
    assert not Webhook.objects.exists()
    webhook = created(alice)["webhook_id"]
    refused(lambda: alice.call("PATCH", f"/v1/webhooks/{webhook}", {"url": url}), 400, "blocked_url")


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"event_types": ["job.exploded"]}, {"event_types.0"}),
        ({"event_types": "job.failed"}, {"event_types"}),
        ({"job_types": ["unknown"]}, {"job_types.0"}),
        ({"secret": "whsec_AA=="}, {"secret"}),
        ({"status": "paused"}, {"status"}),
        ({"headers": {"X-Token": "a\r\nX: y"}}, {"headers"}),
        ({"url": 7}, {"url"}),
        ({"description": "x" * 201}, {"description"}),
        ({"org_slug": "A b"}, {"org_slug"}),
    ],
)
def test_a_bad_body_is_refused_by_its_field(alice, changes, fields):
    response = alice.post("/v1/webhooks", BODY | changes)
    assert response.status_code == 400
    assert {name.partition(".")[0] for name in response.json()["errors"]} == {name.partition(".")[0] for name in fields}
    assert not Webhook.objects.exists()


def test_an_empty_change_is_refused(alice):
    webhook = created(alice)["webhook_id"]
    refused(lambda: alice.call("PATCH", f"/v1/webhooks/{webhook}", {}), 400, "invalid")
    refused(lambda: alice.call("PATCH", f"/v1/webhooks/{webhook}", {"status": "disabled"}), 400, "invalid")
    refused(lambda: alice.call("PATCH", f"/v1/webhooks/{webhook}", {"org_slug": "x"}), 400, "unknown_field")


def test_a_repeated_creation_returns_the_first_webhook(alice):
    key = {"Idempotency-Key": "k"}
    first = alice.post("/v1/webhooks", BODY, **key)
    again = alice.post("/v1/webhooks", BODY, **key)
    assert (again.status_code, again["Idempotency-Replayed"], again.json()) == (201, "true", first.json())
    assert Webhook.objects.count() == 1
    refused(lambda: alice.post("/v1/webhooks", BODY | {"description": "x"}, **key), 409, "idempotency_conflict")
    alice.post(f"/v1/webhooks/{first.json()['webhook_id']}/rotate-secret")
    assert alice.post("/v1/webhooks", BODY, **key).json()["secret"] is None


def test_an_organization_has_a_bounded_number_of_webhooks(alice, settings):
    settings.WEBHOOKS_PER_ORGANIZATION = 2
    first, _ = created(alice), created(alice)
    refused(lambda: alice.post("/v1/webhooks", BODY), 409, "conflict")
    assert alice.call("DELETE", f"/v1/webhooks/{first['webhook_id']}").status_code == 204
    created(alice)


def test_a_rotation_keeps_the_former_secret_for_a_day(alice):
    made = created(alice)
    answer = alice.post(f"/v1/webhooks/{made['webhook_id']}/rotate-secret")
    assert answer.status_code == 200
    assert answer.json()["secret"] not in {None, made["secret"]}
    webhook = Webhook.objects.get()
    former = unseal(WEBHOOK_KEY, webhook.sealed_former_secret, context=webhook.former_sealing_context)
    assert secret_text(former) == made["secret"]
    assert webhook.former_secret_until == webhook.updated_at + OVERLAP
    assert timedelta(hours=24) == OVERLAP


def test_a_deleted_webhook_is_not_there(alice):
    made = created(alice)
    path = f"/v1/webhooks/{made['webhook_id']}"
    assert alice.call("DELETE", path).status_code == 204
    for call in (
        lambda: alice.get(path),
        lambda: alice.call("DELETE", path),
        lambda: alice.call("PATCH", path, {"description": "x"}),
        lambda: alice.post(f"{path}/test"),
        lambda: alice.get(f"{path}/deliveries"),
    ):
        refused(call, 404, "not_found")
    assert alice.get("/v1/webhooks").json()["results"] == []
    row = Webhook.objects.get()
    assert (row.status, row.sealed_secret, row.sealed_former_secret) == ("deleted", None, None)


def test_the_lists_are_filtered(alice):
    first, second = created(alice), created(alice)
    alice.call("PATCH", f"/v1/webhooks/{second['webhook_id']}", {"status": "paused"})
    paused = alice.get("/v1/webhooks?status=paused&org_slug=sandtrace").json()["results"]
    assert [one["webhook_id"] for one in paused] == [second["webhook_id"]]
    assert paused[0]["status_reason"] == "Paused by token test."
    active = alice.get("/v1/webhooks?status=active").json()["results"]
    assert [one["webhook_id"] for one in active] == [first["webhook_id"]]
    refused(lambda: alice.get("/v1/webhooks?status=deleted"), 400, "invalid_query")


def test_an_activation_clears_the_failures_and_resolves_the_incident(alice, organization):
    webhook = make_webhook(organization)
    now = webhook.created_at
    Webhook.objects.update(status=WebhookStatus.PAUSED, failing_since=now)
    terms = {"kind": "webhook", "org_slug": "sandtrace", "job_type": "", "opened_at": now}
    Incident.objects.create(**terms, summary="Its receiver fails.", webhook_ulid=webhook.webhook_ulid)
    # Another one is not resolved because its sentence names this webhook.
    sentence = f"As the webhook {webhook.webhook_ulid} before, this one fails."
    other = Incident.objects.create(**terms, summary=sentence, webhook_ulid="whk_other")
    answer = alice.call("PATCH", f"/v1/webhooks/{webhook.webhook_ulid}", {"status": "active"}).json()
    assert (answer["status"], answer["failing_since"]) == ("active", None)
    assert [incident.pk for incident in Incident.objects.filter(resolved_at=None)] == [other.pk]
    resolved = Incident.objects.exclude(resolved_at=None).get()
    assert resolved.resolution == "The webhook was activated."
    event = OperatorEvent.objects.get(action="incident.resolved", org_slug="sandtrace")
    assert event.target == f"incident:{resolved.incident_ulid}"
    assert event.after == {"kind": "webhook", "webhook_id": webhook.webhook_ulid, "status": "resolved"}
    shown = alice.get(f"/v1/incidents/{resolved.incident_ulid}").json()
    assert (shown["webhook_id"], shown["job_id"]) == (webhook.webhook_ulid, None)


def test_the_audit_log_has_the_host_and_not_the_path(alice):
    created(alice, url="https://93.184.216.34/t0ken")
    event = OperatorEvent.objects.get()
    assert (event.action, event.org_slug, event.after["url"]["host"]) == (
        "webhook.created",
        "sandtrace",
        "93.184.216.34",
    )
    assert "t0ken" not in str(event.after)


# --- who may --------------------------------------------------------------------------------------------------------


def calls(caller, webhook):
    path = f"/v1/webhooks/{webhook}"
    delivery = f"{path}/deliveries/dlv_{'0' * 26}"
    return [
        lambda: caller.get("/v1/webhooks"),
        lambda: caller.post("/v1/webhooks", BODY),
        lambda: caller.get(path),
        lambda: caller.call("PATCH", path, {"description": "x"}),
        lambda: caller.call("DELETE", path),
        lambda: caller.post(f"{path}/rotate-secret"),
        lambda: caller.post(f"{path}/test"),
        lambda: caller.post(f"{path}/redeliver"),
        lambda: caller.get(f"{path}/deliveries"),
        lambda: caller.get(delivery),
        lambda: caller.post(f"{delivery}/redeliver"),
    ]


def test_the_scope_is_needed_for_everything(organization):
    webhook = make_webhook(organization).webhook_ulid
    blind = Caller(api_token(organization, tuple(scope for scope in Scope.values if scope != "orch:operate")))
    for call in calls(blind, webhook):
        assert refused(call, 403, "insufficient_scope")["scope"] == "orch:operate"


def test_workers_and_strangers_see_nothing(organization, wendy):
    webhook = make_webhook(organization).webhook_ulid
    for call in calls(wendy, webhook):
        refused(call, 403, "wrong_principal")
    for call in calls(Caller(), webhook):
        refused(call, 401, "unauthenticated")
    stranger = Caller(api_token(OrganizationFactory()))
    assert stranger.get("/v1/webhooks").json()["results"] == []
    for call in calls(stranger, webhook)[1:]:
        refused(call, 404, "not_found")


# --- tests and redelivery ----------------------------------------------------------------------------------------------


def test_a_test_event_is_a_delivery(alice):
    webhook = created(alice, event_types=["job.failed"])["webhook_id"]
    answer = alice.post(f"/v1/webhooks/{webhook}/test")
    assert answer.status_code == 202
    assert (answer.json()["event_type"], answer.json()["status"], answer.json()["tries"]) == (
        "webhook.test",
        "pending",
        0,
    )
    shown = alice.get(f"/v1/webhooks/{webhook}/deliveries/{answer.json()['delivery_id']}").json()
    assert shown["body"] == Delivery.objects.get().body
    assert shown["last_tries"] == []
    alice.call("PATCH", f"/v1/webhooks/{webhook}", {"status": "paused"})
    refused(lambda: alice.post(f"/v1/webhooks/{webhook}/test"), 409, "conflict")
