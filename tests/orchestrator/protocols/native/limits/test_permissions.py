"""Permissions to set and see limits: the table of docs/api.md, cell by cell."""

import pytest

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.services import tenants
from runtime_jobs.errors import OperatorOnly
from runtime_jobs.models.tenants import Scope
from tests.api_client import refused
from tests.factories import OPERATOR, limited
from tests.orchestrator.protocols.native.limits.limit_requests import (
    AT_ONCE,
    CI,
    EMERGENCY,
    ORG,
    RATE,
    WHY,
    broken,
    by_operator,
    change,
    lift,
    ok,
    path_of,
    with_scopes,
)

pytestmark = pytest.mark.django_db


class TestWhoMaySetLimits:
    """docs/api.md has this as a table; each cell is here."""

    @pytest.mark.parametrize("body", [RATE, AT_ONCE], ids=["rate", "at once"])
    def test_a_token_with_quota_its_own_organizations(self, organization, stranger, body):
        reader = with_scopes(organization, Scope.ORCH_READ, Scope.ORCH_OPERATE)
        document = refused(lambda: reader.post("/v1/limits", body), 403, "insufficient_scope")
        assert document["scope"] == "orch:quota"
        refused(lambda: stranger.post("/v1/limits", body), 404, "not_found")
        ok(with_scopes(organization, Scope.ORCH_QUOTA).post("/v1/limits", body), 201)

    def test_nobody_sees_without_the_scope_and_a_worker_nothing(self, organization, wendy):
        blind = with_scopes(organization, Scope.JOBS_READ, Scope.ORCH_QUOTA, Scope.ORCH_OPERATE)
        limit = by_operator()
        for path in ("/v1/limits", path_of(limit), "/v1/breakers", "/v1/incidents"):
            refused(lambda path=path: blind.get(path), 403, "insufficient_scope")
            refused(lambda path=path: wendy.get(path), 403, "wrong_principal")
        refused(lambda: wendy.post("/v1/limits", RATE), 403, "wrong_principal")
        refused(lambda: wendy.post("/v1/pools/shared-linux/pause", WHY), 403, "wrong_principal")

    def test_a_token_neither_changes_nor_lifts_what_an_operator_set(self, alice):
        limit = by_operator()
        assert ok(alice.get(path_of(limit)))["set_by"] == {"kind": "operator", "id": "olga"}
        refused(lambda: change(alice, limit, {"max_active": 1}), 403, "operator_only")
        refused(lambda: lift(alice, limit), 403, "operator_only")
        refused(lambda: alice.post("/v1/limits", AT_ONCE), 403, "operator_only")

    def test_nor_what_an_operator_sets_at_that_moment(self, alice):
        """The operation itself checks under the advisory lock: what a view has read may be outdated."""
        by_operator()
        with pytest.raises(OperatorOnly):
            limited(ORG, max_active=9, cause=Cause(CI, "mine"))

    def test_emergencies_are_operators(self, alice, olga):
        refused(lambda: alice.post("/v1/limits", EMERGENCY), 403, "operator_only")
        shown = ok(olga.post("/v1/limits", EMERGENCY), 201)
        refused(lambda: change(alice, shown, {"max_active": 9}), 403, "operator_only")
        ok(change(olga, shown, {"max_active": 4}))

    def test_a_plans_limit_is_no_tokens(self, alice, organization):
        organization.plan.max_active = 2
        organization.plan.save()
        tenants.sync_plan(org_slug=ORG)
        refused(lambda: change(alice, Limit.objects.get(), {"max_active": 9}), 403, "operator_only")
        refused(lambda: lift(alice, Limit.objects.get()), 403, "operator_only")

    def test_a_breakers_limit_is_nobodys(self, alice, olga):
        broken(ORG)
        limit = Limit.objects.get(kind=LimitKind.BREAKER)
        for caller in (alice, olga):
            refused(lambda caller=caller: lift(caller, limit), 409, "not_settable")

    def test_an_operator_changes_what_a_token_set_and_then_it_is_his(self, alice, olga):
        shown = ok(alice.post("/v1/limits", AT_ONCE), 201)
        ok(change(olga, shown, {"max_active": 1}))
        refused(lambda: change(alice, shown, {"max_active": 9}, version=2), 403, "operator_only")

    def test_staff_need_the_permission(self, vera, olga):
        refused(lambda: vera.post("/v1/limits", RATE), 403, "insufficient_scope")
        assert ok(vera.get("/v1/limits"))["results"] == []
        ok(olga.post("/v1/limits", RATE), 201)
        refused(lambda: olga.post("/v1/limits", RATE | {"org_slug": "nobody"}), 404, "not_found")

    def test_operators_alone_see_what_belongs_to_no_tenant(self, alice, olga, pool):
        limited(
            LimitTarget(LimitScope.POOL, "", pool.slug),
            kind=LimitKind.PAUSE,
            max_active=0,
            cause=Cause(OPERATOR, WHY["reason"]),
        )
        limited(
            LimitTarget(LimitScope.JOB_TYPE, "", "runtime"),
            kind=LimitKind.PAUSE,
            max_active=0,
            cause=Cause(OPERATOR, WHY["reason"]),
        )
        assert ok(alice.get("/v1/limits"))["results"] == []
        assert len(ok(olga.get("/v1/limits"))["results"]) == 2
        for limit in Limit.objects.all():
            refused(lambda limit=limit: alice.get(path_of(limit)), 404, "not_found")
