"""API tokens: made by a form, shown once, ended for good."""

import re
from datetime import UTC, datetime

import pytest
from django.test import Client

from runtime_jobs.models import ApiToken, OperatorEvent
from tests.factories import OrganizationFactory, api_token
from tests.orchestrator.admin.pages import address
from tests.orchestrator.admin.test_job_actions import messages_of
from workers.registry.tokens import digest_of

LIST = "/admin/runtime_jobs/apitoken/"
WHY = {"reason": "it leaked"}


@pytest.fixture
def organization(db):
    return OrganizationFactory(slug="acme")


def form(tenant, **changes):
    return {"organization": tenant.pk, "name": "ci", "scopes": ["jobs:read", "jobs:write"]} | changes


def test_a_new_token_is_shown_once_and_works(olga, organization):
    answer = olga.post(f"{LIST}add/", form(organization))
    token = answer.context["token"]
    row = ApiToken.objects.get()
    assert token in answer.content.decode()
    assert (row.digest, row.scopes, row.created_by) == (digest_of(token), ["jobs:read", "jobs:write"], "olga")
    assert "no-store" in answer["Cache-Control"]
    for page in (LIST, f"{LIST}{row.pk}/change/", address(OperatorEvent, "changelist"), f"{LIST}{row.pk}/revoke/"):
        text = olga.get(page).content.decode()
        assert token not in text
        assert row.digest not in text
    called = Client().get("/v1/runtime/jobs", headers={"Authorization": f"Bearer {token}"})
    assert called.status_code == 200


def test_a_new_token_has_a_copy_button_and_a_button_done(olga, organization):
    page = olga.post(f"{LIST}add/", form(organization)).content.decode()
    assert 'data-copy="#token"' in page
    assert re.search(r">\s*Done\s*</a>", page)


def test_its_creation_is_in_the_audit_log(olga, organization):
    olga.post(f"{LIST}add/", form(organization, expires_at_0="2031-05-01", expires_at_1="00:00:00"))
    event, row = OperatorEvent.objects.get(), ApiToken.objects.get()
    assert (event.action, event.target, event.actor) == ("token.created", f"token:acme/{row.pk}", "operator:olga")
    assert event.after["expires_at"] == "2031-05-01T00:00:00+00:00"
    assert row.expires_at == datetime(2031, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("wrong", [{"scopes": []}, {"scopes": ["root"]}, {"name": ""}, {"organization": "0"}])
def test_a_token_that_makes_no_sense_is_not_made(wrong, olga, organization):
    assert olga.post(f"{LIST}add/", form(organization, **wrong)).status_code == 400
    assert not ApiToken.objects.exists()


def test_a_revoked_token_counts_no_more(olga, organization):
    token = api_token(organization)
    row = ApiToken.objects.get()
    assert messages_of(olga.post(f"{LIST}{row.pk}/revoke/", WHY)) == ["API token test (acme) revoked."]
    called = Client().get("/v1/runtime/jobs", headers={"Authorization": f"Bearer {token}"})
    assert called.status_code == 401
    event = OperatorEvent.objects.get()
    assert (event.action, event.reason) == ("token.revoked", "it leaked")
    olga.post(f"{LIST}{row.pk}/revoke/", WHY)
    assert OperatorEvent.objects.count() == 1
    assert f"/{row.pk}/revoke/" not in olga.get(f"{LIST}{row.pk}/change/").content.decode()


def test_a_token_is_not_revoked_without_a_reason(olga, organization):
    api_token(organization)
    row = ApiToken.objects.get()
    assert olga.post(f"{LIST}{row.pk}/revoke/", {"reason": ""}).status_code == 400
    row.refresh_from_db()
    assert row.revoked_at is None


def test_whoever_may_only_look_makes_and_ends_none(viewer, organization):
    api_token(organization)
    row = ApiToken.objects.get()
    assert viewer.get(f"{LIST}add/").status_code == 403
    assert viewer.post(f"{LIST}add/", form(organization)).status_code == 403
    assert viewer.post(f"{LIST}{row.pk}/revoke/", WHY).status_code == 403
    assert ApiToken.objects.get().revoked_at is None


def test_a_token_says_how_it_stands(olga, organization):
    for name, changes in (
        ("a", {}),
        ("b", {"expires_at": "2020-01-01T00:00Z"}),
        ("c", {"revoked_at": "2020-01-01T00:00Z"}),
    ):
        ApiToken.objects.create(organization=organization, name=name, digest=name * 64, scopes=[], **changes)
    text = olga.get(LIST).content.decode()
    for word in ("valid", "expired", "revoked"):
        assert f"> {word} </span>" in text
