"""Operations on a pool, which only operators may use."""

import pytest

from orchestrator.core.principals import INSTALLATION
from orchestrator.services import claiming
from runtime_jobs.models import OperatorEvent
from runtime_jobs.models.tenants import Scope
from tests.api_client import refused
from tests.factories import WorkerFactory, offer, submitted
from tests.orchestrator.protocols.native.limits.limit_requests import WHY, ok, with_scopes
from workers.models import Pool

pytestmark = pytest.mark.django_db


class TestPools:
    PATHS = [
        ("POST", "pause", {}),
        ("POST", "resume", {}),
        ("POST", "throttle", {"per_hour": 6}),
        ("PATCH", "", {"policy": "fair"}),
    ]

    @pytest.mark.parametrize(("method", "action", "terms"), PATHS, ids=str)
    def test_for_a_tenant_there_are_none_and_staff_need_the_permission(self, alice, vera, pool, method, action, terms):
        for slug in ("shared-linux", "nowhere"):
            path = f"/v1/pools/{slug}/{action}".rstrip("/")
            refused(lambda path=path: alice.call(method, path, terms | WHY), 404, "not_found")
            refused(lambda path=path: vera.call(method, path, terms | WHY), 403, "operator_only")

    @pytest.mark.parametrize(("method", "action", "terms"), PATHS, ids=str)
    def test_a_scope_in_a_tokens_row_makes_nobody_an_operator(self, organization, pool, method, action, terms):
        path = f"/v1/pools/shared-linux/{action}".rstrip("/")
        token = with_scopes(organization, INSTALLATION, *Scope.values)
        refused(lambda: token.call(method, path, terms | WHY), 404, "not_found")

    @pytest.mark.parametrize(("method", "action", "terms"), PATHS, ids=str)
    def test_what_is_not_there_is_not_there(self, olga, method, action, terms):
        path = f"/v1/pools/nowhere/{action}".rstrip("/")
        refused(lambda: olga.call(method, path, terms | WHY), 404, "not_found")

    def test_it_is_paused_resumed_and_throttled(self, olga, organization, pool):
        worker = WorkerFactory(pool=pool)
        submitted(organization.projects.get())
        shown = ok(olga.post("/v1/pools/shared-linux/pause", WHY))
        assert (shown["scope"], shown["key"], shown["org_slug"]) == ("pool", "shared-linux", None)
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        ok(olga.post("/v1/pools/shared-linux/resume", WHY), 204)
        assert ok(olga.post("/v1/pools/shared-linux/throttle", {"per_hour": 6, **WHY}))["per_hour"] == 6
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None
        assert OperatorEvent.objects.filter(target="pool:shared-linux", actor="operator:olga").count() == 3

    def test_its_policy_changes(self, olga, pool):
        answer = olga.call("PATCH", "/v1/pools/shared-linux", {"policy": "fair", **WHY})
        assert ok(answer) == ok(olga.get("/v1/pools"))["results"][0]
        assert ok(answer)["policy"] == "fair"
        assert Pool.objects.get(slug="shared-linux").policy == "fair"
        assert OperatorEvent.objects.get().action == "pool.policy"
        refused(lambda: olga.call("PATCH", "/v1/pools/shared-linux", {"policy": "x", **WHY}), 400, "invalid")
