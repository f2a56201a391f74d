"""`/v1/secrets` and `/v1/variables`: permissions, tenants, and no value of a secret in any answer."""

import pytest

from runtime_jobs.models import OperatorEvent, Secret, Variable
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, ProjectFactory, api_token
from tests.workflow_jobs import make_repository

pytestmark = pytest.mark.django_db
VALUE = "hunter2-correct-horse"


@pytest.fixture
def repository(organization):
    return make_repository(ProjectFactory(organization=organization))


def body(**changes):
    return {"org_slug": "sandtrace", "repository": "alice/demo", "value": VALUE} | changes


@pytest.mark.parametrize("noun", ["secrets", "variables"])
class TestBoth:
    def test_set_list_change_and_delete(self, alice, repository, noun):
        created = alice.call("PUT", f"/v1/{noun}/TOKEN", body())
        assert (created.status_code, created.json()["repository"]) == (201, "alice/demo")
        assert created.json()["updated_by"] == {"kind": "client", "id": "token test"}
        assert alice.call("PUT", f"/v1/{noun}/token", body(repository="Alice/DEMO", value="two")).status_code == 200
        assert alice.call("PUT", f"/v1/{noun}/TOKEN", body(repository=None)).status_code == 201
        listed = alice.get(f"/v1/{noun}").json()["results"]
        assert [(row["name"], row["repository"]) for row in listed] == [("TOKEN", None), ("token", "alice/demo")]
        of_repository = alice.get(f"/v1/{noun}?repository=alice/demo&org_slug=sandtrace").json()["results"]
        assert [row["name"] for row in of_repository] == ["token"]
        gone = alice.call("DELETE", f"/v1/{noun}/TOKEN?org_slug=sandtrace&repository=alice/demo")
        assert (gone.status_code, gone.content) == (204, b"")
        refused(
            lambda: alice.call("DELETE", f"/v1/{noun}/TOKEN?org_slug=sandtrace&repository=alice/demo"),
            404,
            "not_found",
        )
        assert alice.call("DELETE", f"/v1/{noun}/TOKEN?org_slug=sandtrace").status_code == 204
        assert not Secret.objects.exists()
        assert not Variable.objects.exists()

    def test_the_scope_is_needed_for_everything(self, organization, repository, noun):
        others = tuple(scope for scope in Scope.values if scope != "secrets:write")
        blind = Caller(api_token(organization, others))
        for call in (
            lambda: blind.get(f"/v1/{noun}"),
            lambda: blind.call("PUT", f"/v1/{noun}/A", body()),
            lambda: blind.call("DELETE", f"/v1/{noun}/A?org_slug=sandtrace"),
        ):
            assert refused(call, 403, "insufficient_scope")["scope"] == "secrets:write"

    def test_workers_and_strangers_see_nothing(self, alice, wendy, repository, noun):
        alice.call("PUT", f"/v1/{noun}/A", body())
        refused(lambda: wendy.get(f"/v1/{noun}"), 403, "wrong_principal")
        refused(lambda: Caller().get(f"/v1/{noun}"), 401, "unauthenticated")
        stranger = Caller(api_token(OrganizationFactory()))
        assert stranger.get(f"/v1/{noun}").json()["results"] == []
        refused(lambda: stranger.call("PUT", f"/v1/{noun}/A", body()), 404, "not_found")
        refused(lambda: stranger.call("DELETE", f"/v1/{noun}/A?org_slug=sandtrace"), 404, "not_found")

    @pytest.mark.parametrize(
        ("changes", "fields"),
        [
            ({"value": ""}, {"value"}),
            ({"value": "x" * (48 * 1024 + 1)}, {"value"}),
            ({"value": 7}, {"value"}),
            ({"value": None}, {"value"}),
            ({"org_slug": "A b"}, {"org_slug"}),
            ({"repository": "demo"}, {"repository"}),
            ({"repository": "a/b/c"}, {"repository"}),
            ({"extra": 1}, {"extra"}),
        ],
    )
    def test_a_bad_body_is_refused_by_its_field(self, alice, repository, noun, changes, fields):
        response = alice.call("PUT", f"/v1/{noun}/A", body(**changes))
        assert response.status_code == 400
        assert set(response.json()["errors"]) == fields
        assert not Secret.objects.exists()

    @pytest.mark.parametrize("name", ["1A", "A-B", "A" * 101, "A.B"])
    def test_a_bad_name_is_no_resource(self, alice, repository, noun, name):
        refused(lambda: alice.call("PUT", f"/v1/{noun}/{name}", body()), 404, "not_found")

    def test_the_repository_of_another_tenant_is_not_found(self, alice, repository, noun):
        foreign = make_repository(ProjectFactory(organization=OrganizationFactory()), owner="bob")
        refused(lambda: alice.call("PUT", f"/v1/{noun}/A", body(repository=foreign.full_name)), 404, "not_found")

    @pytest.mark.parametrize("query", ["", "?org_slug=A+b", "?org_slug=sandtrace&repository=x", "?org_slug=a&b=c"])
    def test_a_bad_query_of_a_deletion_is_refused(self, alice, repository, noun, query):
        refused(lambda: alice.call("DELETE", f"/v1/{noun}/A{query}"), 400, "invalid_query")


def test_no_answer_contains_a_value_of_a_secret(alice, repository):
    answers = [
        alice.call("PUT", "/v1/secrets/A", body()),
        alice.call("PUT", "/v1/secrets/A", body()),
        alice.get("/v1/secrets"),
        alice.call("PUT", "/v1/secrets/A", body(repository=5)),
        alice.call("PUT", "/v1/secrets/A", body(value=VALUE + "\ud800")),
        alice.call("PUT", "/v1/secrets/1", body()),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 400, 400, 404]
    assert not [answer for answer in answers if VALUE in answer.content.decode()]


def test_a_variable_is_returned_and_contains_no_expression(alice, repository):
    assert alice.call("PUT", "/v1/variables/A", body()).json()["value"] == VALUE
    response = alice.call("PUT", "/v1/variables/A", body(value="${{ secrets.A }}"))
    assert (response.status_code, set(response.json()["errors"])) == (400, {"value"})


def test_the_address_and_the_token_are_in_the_audit_log(alice, repository):
    alice.call("PUT", "/v1/secrets/A", body())
    event = OperatorEvent.objects.get()
    assert (event.action, event.actor, event.source_address) == ("secret.created", "client:token test", "127.0.0.1")
    assert VALUE not in str(event.after)
