"""Breakers through the API."""

import pytest

from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from runtime_jobs.errors import NotFound
from runtime_jobs.models.tenants import Scope
from tests.api_client import refused
from tests.orchestrator.protocols.native.limits.limit_requests import CI, ORG, WHY, broken, ok, with_scopes

pytestmark = pytest.mark.django_db


class TestBreakers:
    def test_an_open_one_is_seen_with_its_incident_and_reset(self, alice, organization):
        broken(ORG)
        (shown,) = ok(alice.get("/v1/breakers"))["results"]
        assert (shown["org_slug"], shown["job_type"], shown["state"]) == (ORG, "runtime", "open")
        assert shown["next_probe_at"] > shown["opened_at"]
        (incident,) = ok(alice.get("/v1/incidents?kind=breaker"))["results"]
        assert incident["incident_id"].startswith("inc_")
        assert (incident["resolved_at"], incident["resolved_by"]) == (None, None)
        body = {"org_slug": ORG, "job_type": "runtime", **WHY}
        closed = ok(alice.post("/v1/breakers/reset", body))
        assert (closed["state"], closed["opened_at"], closed["next_probe_at"]) == ("closed", None, None)
        (incident,) = ok(alice.get("/v1/incidents?kind=breaker"))["results"]
        assert incident["resolved_by"] == {"kind": "client", "id": "token test"}
        refused(lambda: alice.post("/v1/breakers/reset", body), 404, "not_found")

    def test_each_tenant_sees_and_resets_its_own_and_operators_all(self, organization, stranger, olga, vera):
        broken(ORG)
        body = {"org_slug": ORG, "job_type": "runtime", **WHY}
        assert ok(stranger.get("/v1/breakers"))["results"] == []
        assert ok(stranger.get("/v1/incidents"))["results"] == []
        refused(lambda: stranger.post("/v1/breakers/reset", body), 404, "not_found")
        reader = with_scopes(organization, Scope.ORCH_READ, Scope.ORCH_QUOTA)
        refused(lambda: reader.post("/v1/breakers/reset", body), 403, "insufficient_scope")
        assert (
            len(ok(vera.get("/v1/breakers"))["results"])
            == len(ok(vera.get("/v1/incidents?kind=breaker"))["results"])
            == 1
        )
        refused(lambda: vera.post("/v1/breakers/reset", body), 403, "insufficient_scope")
        ok(olga.post("/v1/breakers/reset", body))


def test_a_verb_says_so_where_nothing_is_there(db):
    with pytest.raises(NotFound):
        breakers.reset_breaker(org_slug=ORG, job_type="runtime", cause=Cause(CI, "test"))
