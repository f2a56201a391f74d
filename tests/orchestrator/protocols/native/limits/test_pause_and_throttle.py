"""Pause, resume and throttle of what jobs come from."""

from datetime import timedelta

import pytest

from leases.models import Limit
from orchestrator.services import claiming
from runtime_jobs.db_time import database_now
from runtime_jobs.models.tenants import Scope
from tests.api_client import refused
from tests.factories import WorkerFactory, offer, submitted
from tests.orchestrator.protocols.native.limits.limit_requests import (
    ACTIONS,
    ALL,
    MINE,
    OF_EVERY_TYPE,
    OF_ORGANIZATION,
    OF_POOL,
    OF_PROJECT,
    OF_TYPE,
    ORG,
    WHY,
    Browser,
    ok,
    with_scopes,
)

pytestmark = pytest.mark.django_db


class TestPauseResumeThrottle:
    @pytest.mark.parametrize("source", MINE, ids=str)
    def test_a_token_holds_its_own_and_lets_go(self, organization, stranger, source):
        alice = with_scopes(organization, Scope.ORCH_OPERATE)
        worker = WorkerFactory()
        submitted(organization.projects.get())
        until = (database_now() + timedelta(hours=1)).isoformat()
        paused = alice.post("/v1/limits/pause", {"source": source, "until": until, **WHY})
        shown = ok(paused)
        assert (shown["kind"], shown["reason"], paused["ETag"]) == ("pause", "test", '"1"')
        assert shown["next_start_at"] == shown["until"] != None  # noqa: E711 both at once
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        for action, terms in ACTIONS:
            body = {"source": source, **terms, **WHY}
            refused(lambda action=action, body=body: stranger.post(f"/v1/limits/{action}", body), 404, "not_found")
        ok(alice.post("/v1/limits/resume", {"source": source, **WHY}), 204)
        refused(lambda: alice.post("/v1/limits/resume", {"source": source, **WHY}), 404, "not_found")
        ok(alice.post("/v1/limits/throttle", {"source": source, "per_hour": 6, "burst": 2, **WHY}))
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None
        ok(alice.post("/v1/limits/throttle", {"source": source, "per_hour": None, **WHY}), 204)
        assert not Limit.objects.exists()

    @pytest.mark.parametrize(("action", "terms"), ACTIONS, ids=[action for action, _ in ACTIONS])
    @pytest.mark.parametrize("source", ALL, ids=str)
    def test_it_takes_the_right_to_operate(self, organization, vera, pool, source, action, terms):
        body = {"source": source, **terms, **WHY}
        quota = with_scopes(organization, Scope.ORCH_READ, Scope.ORCH_QUOTA, Scope.JOBS_WRITE)
        for caller in (quota, vera):
            refused(lambda caller=caller: caller.post(f"/v1/limits/{action}", body), 403, "insufficient_scope")

    @pytest.mark.parametrize(("action", "terms"), ACTIONS, ids=[action for action, _ in ACTIONS])
    @pytest.mark.parametrize("source", [OF_EVERY_TYPE, OF_POOL], ids=str)
    def test_what_concerns_everybody_is_operators_with_the_permission(self, alice, olga, pool, source, action, terms):
        body = {"source": source, **terms, **WHY}
        path = f"/v1/limits/{action}"
        refused(lambda: alice.post(path, body), 404, "not_found")
        otto = Browser("otto", "runtime_jobs.operate_job")
        refused(lambda: otto.post(path, body), 403, "operator_only")
        if action == "resume":
            ok(olga.post("/v1/limits/pause", body))
        ok(olga.post(path, body), 204 if action == "resume" else 200)

    @pytest.mark.parametrize("source", MINE, ids=str)
    def test_an_operator_holds_a_tenants_and_the_tenant_cannot_let_go(self, alice, olga, source):
        ok(olga.post("/v1/limits/pause", {"source": source, **WHY}))
        ok(olga.post("/v1/limits/throttle", {"source": source, "per_hour": 6, **WHY}))
        soon = (database_now() + timedelta(seconds=1)).isoformat()
        for action, terms in (*ACTIONS, ("pause", {"until": soon}), ("throttle", {"per_hour": None})):
            body = {"source": source, **terms, **WHY}
            refused(lambda action=action, body=body: alice.post(f"/v1/limits/{action}", body), 403, "operator_only")
        ok(olga.post("/v1/limits/resume", {"source": source, **WHY}), 204)

    @pytest.mark.parametrize(
        ("source", "field"),
        [
            ({"kind": "organization"}, "source.org_slug"),
            (OF_ORGANIZATION | {"key": "web"}, "source.key"),
            ({"kind": "project", "org_slug": ORG}, "source.key"),
            ({"kind": "project", "key": "web"}, "source.org_slug"),
            ({"kind": "job_type"}, "source.key"),
            (OF_TYPE | {"key": "none"}, "source.key"),
            (OF_POOL | {"org_slug": ORG}, "source.org_slug"),
            ({"kind": "address", "key": "192.0.2.1"}, "source.kind"),
            ("organization", "source"),
        ],
        ids=str,
    )
    def test_a_source_that_makes_no_sense_is_refused_by_name(self, alice, source, field):
        document = refused(lambda: alice.post("/v1/limits/pause", {"source": source, **WHY}), 400, "invalid")
        assert any(name.startswith(field) for name in document["errors"]), document

    @pytest.mark.parametrize("source", [OF_PROJECT | {"key": "no"}, OF_ORGANIZATION | {"org_slug": "no"}], ids=str)
    def test_what_is_not_there_cannot_be_held(self, alice, olga, source):
        for caller in (alice, olga):
            body = {"source": source, **WHY}
            refused(lambda caller=caller, body=body: caller.post("/v1/limits/pause", body), 404, "not_found")

    @pytest.mark.parametrize("action", ["pause", "throttle"])
    def test_a_time_that_is_over_is_refused(self, alice, action):
        body = {"source": OF_ORGANIZATION, "until": "2020-01-01T00:00:00Z", **WHY}
        body |= {"per_hour": 6} if action == "throttle" else {}
        document = refused(lambda: alice.post(f"/v1/limits/{action}", body), 400, "invalid")
        assert set(document["errors"]) == {"until"}

    @pytest.mark.parametrize(
        "body", [{}, {"reason": ""}, {"until": "tomorrow", **WHY}, {"per_hour": 5, **WHY}], ids=str
    )
    def test_a_pause_says_why_and_nothing_foreign(self, alice, body):
        code = "unknown_field" if "per_hour" in body else "invalid"
        refused(lambda: alice.post("/v1/limits/pause", {"source": OF_ORGANIZATION} | body), 400, code)
