"""`/v1/packs`: register a version, read it, list versions, and the refusals."""

import hashlib
import json

import pytest

from runtime_jobs.models import PackVersion
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, api_token
from tests.packs import PLAN

pytestmark = pytest.mark.django_db
PATH = "/v1/packs/vuln-scan-and-report/versions/1.2.0"


def put(caller, plan=PLAN, path=PATH, **members):
    return caller.call("PUT", path, {"plan": plan, **members})


def test_from_the_registration_to_the_list(alice):
    made = put(alice)
    assert made.status_code == 201, made.content
    canonical = json.dumps(PLAN, sort_keys=True, separators=(",", ":")).encode()  # ASCII without fractions
    digest = "sha256:" + hashlib.sha256(canonical).hexdigest()
    document = made.json()
    assert (document["org_slug"], document["pack_id"], document["version"]) == (
        "sandtrace",
        "vuln-scan-and-report",
        "1.2.0",
    )
    assert (document["plan_hash"], document["plan"]) == (digest, PLAN)
    assert document["created_by"] == {"kind": "client", "id": "token test"}
    again = put(alice, org_slug="sandtrace")
    assert (again.status_code, again.json()) == (200, document)
    assert alice.get(PATH).json() == document
    (listed,) = alice.get("/v1/packs?pack_id=vuln-scan-and-report").json()["results"]
    assert listed == {name: value for name, value in document.items() if name != "plan"}
    assert alice.get("/v1/packs?pack_id=other").json()["results"] == []


def test_another_plan_is_a_conflict_and_changes_nothing(alice):
    put(alice)
    found = refused(lambda: put(alice, PLAN | {"steps": ["false"]}), 409, "conflict")
    assert "A version never changes" in found["detail"]
    assert alice.get(PATH).json()["plan"] == PLAN


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({}, "plan.steps"),
        ({"steps": []}, "plan.steps"),
        ({"steps": ["true"], "working_directory": "../x"}, "plan.working_directory"),
        ({"steps": ["true"], "artifacts": [{"path_glob": "../x"}]}, "plan.artifacts.0.path_glob"),
        ({"steps": ["true"], "environment": {"A": 1}}, "plan.environment.A"),
        ({"steps": ["true"], "environment": {"INPUT_A": "1"}}, "plan.environment"),
        ({"steps": ["true"], "inputs": {"a": {"default": 1.5}}}, "plan.inputs.a.default"),
        ({"steps": ["true"], "inputs": {"a": {}, "A": {}}}, "plan.inputs"),
        ({"steps": ["true"], "allow_network": "yes"}, "plan.allow_network"),
    ],
    ids=str,
)
def test_a_wrong_plan_is_named(alice, plan, field):
    found = refused(lambda: put(alice, plan), 400, "invalid")
    assert list(found["errors"]) == [field]
    assert not PackVersion.objects.exists()


def test_unknown_members_are_refused(alice):
    refused(lambda: put(alice, PLAN | {"image": "alpine"}), 400, "unknown_field")
    refused(lambda: put(alice, pinned=True), 400, "unknown_field")


@pytest.mark.parametrize("path", ["/v1/packs/../versions/1", "/v1/packs/a b/versions/1", "/v1/packs/a/versions/-1"])
def test_a_wrong_name_is_no_address(alice, path):
    assert put(alice, path=path).status_code == 404
    assert not PackVersion.objects.exists()


def test_each_call_needs_its_scope(alice, organization):
    put(alice)
    reader = Caller(api_token(organization, (Scope.ORCH_READ,)))
    assert reader.get(PATH).status_code == reader.get("/v1/packs").status_code == 200
    refused(lambda: put(reader), 403, "insufficient_scope")
    operator = Caller(api_token(organization, (Scope.ORCH_OPERATE,)))
    refused(lambda: operator.get(PATH), 403, "insufficient_scope")
    assert put(operator).status_code == 200


def test_another_tenant_has_packs_of_its_own(alice):
    put(alice)
    stranger = Caller(api_token(OrganizationFactory(slug="stranger")))
    refused(lambda: stranger.get(PATH), 404, "not_found")
    refused(lambda: stranger.get(f"{PATH}?org_slug=sandtrace"), 404, "not_found")
    refused(lambda: put(stranger, org_slug="sandtrace"), 404, "not_found")
    assert stranger.get("/v1/packs").json()["results"] == []
    assert put(stranger, {"steps": ["true"]}).status_code == 201


def test_a_caller_of_all_tenants_names_one(alice, client, django_user_model):
    put(alice)
    client.force_login(django_user_model.objects.create_user("olga", is_staff=True, is_superuser=True))
    found = client.get(PATH)
    assert (found.status_code, found.json()["errors"].keys()) == (400, {"org_slug"})
    assert client.get(f"{PATH}?org_slug=sandtrace").json()["plan"] == PLAN
    unnamed = client.put(PATH, {"plan": PLAN}, content_type="application/json")
    assert (unnamed.status_code, unnamed.json()["errors"].keys()) == (400, {"org_slug"})
