"""Limits, pauses, throttles, breakers and pools through the API: who may what, by version, and what is shown."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from leases.limits import Subject
from leases.models import Breaker, Limit, LimitKind, LimitScope
from orchestrator import lifecycle
from orchestrator.access.principals import INSTALLATION
from orchestrator.models import Incident
from runtime_jobs.clock import database_time
from runtime_jobs.errors import NotFound, OperatorOnly
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.models.tenants import Scope
from runtime_jobs.states import FailureReason
from tests.calling import Caller, refused
from tests.factories import (
    OPERATOR,
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    offer,
    submitted,
)
from workers.models import Pool

pytestmark = pytest.mark.django_db

ORG = "sandtrace"
CI = Actor("client", "token test")
WHY = {"reason": "test"}
RATE = {"kind": "rate", "org_slug": ORG, "per_hour": 60, "burst": 2, **WHY}
AT_ONCE = {"kind": "organization", "org_slug": ORG, "max_active": 3, **WHY}
EMERGENCY = AT_ONCE | {"kind": "emergency"}
OF_ORGANIZATION = {"kind": "organization", "org_slug": ORG}
OF_PROJECT = {"kind": "project", "org_slug": ORG, "key": "web"}
OF_TYPE = {"kind": "job_type", "org_slug": ORG, "key": "runtime"}
OF_EVERY_TYPE = {"kind": "job_type", "key": "runtime"}
OF_POOL = {"kind": "pool", "key": "shared-linux"}
MINE = [OF_ORGANIZATION, OF_PROJECT, OF_TYPE]
ALL = [*MINE, OF_EVERY_TYPE, OF_POOL]
VERBS = [("pause", {}), ("resume", {}), ("throttle", {"per_hour": 6})]


class Browser(Caller):
    """A person of the staff with these permissions, in a browser's session."""

    def __init__(self, name: str, *permissions: str) -> None:
        super().__init__()
        user = User.objects.create(username=name, is_staff=True)
        for app, codename in (permission.split(".") for permission in permissions):
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        self.http = Client(raise_request_exception=False)
        self.http.force_login(user)


@pytest.fixture
def olga(organization) -> Browser:
    """An operator who may everything here."""
    may = ("runtime_jobs.operate_job", "runtime_jobs.change_organization", "workers.change_pool")
    return Browser("olga", *may)


@pytest.fixture
def vera(organization) -> Browser:
    """Staff who may only look."""
    return Browser("vera", "runtime_jobs.view_job")


@pytest.fixture
def pool(db) -> Pool:
    return PoolFactory()


@pytest.fixture
def stranger(organization) -> Caller:
    """A program of another organization, with every scope."""
    other = OrganizationFactory(slug="other")
    ProjectFactory(organization=other)
    return Caller(api_token(other))


def with_scopes(organization, *scopes: str) -> Caller:
    return Caller(api_token(organization, scopes))


def ok(response, status=200):
    assert response.status_code == status, response.content
    return response.json() if response.content else None


def path_of(limit) -> str:
    return f"/v1/limits/{limit.pk if isinstance(limit, Limit) else limit['limit_id']}"


def change(caller, limit, body, version=1):
    return caller.call("PATCH", path_of(limit), body | WHY, **{"If-Match": f'"{version}"'})


def lift(caller, limit, version=1):
    return caller.call("DELETE", f"{path_of(limit)}?reason=calm", **{"If-Match": f'"{version}"'})


def by_operator(**terms) -> Limit:
    return lifecycle.set_limit(org_slug=ORG, max_active=5, by=OPERATOR, reason="night", **terms)


class TestLimits:
    @pytest.mark.parametrize("body", [RATE, AT_ONCE], ids=["rate", "at once"])
    def test_one_is_made_seen_changed_and_lifted(self, alice, body):
        made = alice.post("/v1/limits", body)
        shown = ok(made, 201)
        assert (made["ETag"], made["Location"]) == ('"1"', path_of(shown))
        assert (shown["kind"], shown["org_slug"], shown["key"], shown["reason"]) == (body["kind"], ORG, "*", "test")
        assert shown["set_by"] == {"kind": "client", "id": "token test"}
        seen = alice.get(path_of(shown))
        assert (ok(seen), seen["ETag"]) == (shown, '"1"')
        name, value = ("per_hour", 120) if body is RATE else ("max_active", 7)
        changed = change(alice, shown, {name: value})
        assert changed["ETag"] == '"2"'
        assert ok(changed) | {"set_at": ""} == shown | {name: value, "version": 2, "set_at": ""}
        ok(lift(alice, shown, version=2), 204)
        refused(lambda: alice.get(path_of(shown)), 404, "not_found")
        events = OperatorEvent.objects.order_by("pk").values_list("action", "actor", "reason")
        assert [event[0] for event in events] == ["limit.set", "limit.set", "limit.lifted"]
        assert {event[1] for event in events} == {"client:token test"}

    def test_what_a_rate_does_not_say_stays(self, alice):
        shown = ok(alice.post("/v1/limits", RATE), 201)
        found = ok(change(alice, shown, {"burst": 9}))
        assert (found["per_hour"], found["burst"]) == (60, 9)

    @pytest.mark.parametrize("act", [change, lift], ids=["change", "lift"])
    def test_a_version_that_is_not_that_of_now_is_refused(self, alice, act):
        shown = ok(alice.post("/v1/limits", AT_ONCE), 201)
        ok(change(alice, shown, {"max_active": 4}))
        terms = ({"max_active": 5},) if act is change else ()
        document = refused(lambda: act(alice, shown, *terms, version=1), 412, "version_conflict")
        assert document["version"] == 2
        assert Limit.objects.get().max_active == 4

    @pytest.mark.parametrize("method", ["PATCH", "DELETE"])
    def test_whoever_changes_says_what_he_saw(self, alice, method):
        path = path_of(ok(alice.post("/v1/limits", AT_ONCE), 201)) + ("?reason=x" if method == "DELETE" else "")
        body = {"max_active": 1, **WHY} if method == "PATCH" else None
        refused(lambda: alice.call(method, path, body), 428, "precondition_required")
        for wrong in ("1", "*", '"x"', 'W/"1"', '"1", "2"', ""):
            headers = {"If-Match": wrong}
            document = refused(lambda headers=headers: alice.call(method, path, body, **headers), 400, "invalid")
            assert set(document["errors"]) == {"If-Match"}

    def test_a_second_one_of_a_kind_is_a_conflict_and_not_a_change(self, alice):
        ok(alice.post("/v1/limits", AT_ONCE), 201)
        refused(lambda: alice.post("/v1/limits", AT_ONCE | {"max_active": 9}), 409, "conflict")
        ok(alice.post("/v1/limits", AT_ONCE | {"job_type": "steps"}), 201)

    def test_a_repeat_with_a_key_gets_the_first_answer(self, alice):
        first = alice.post("/v1/limits", AT_ONCE, **{"Idempotency-Key": "k"})
        again = alice.post("/v1/limits", AT_ONCE, **{"Idempotency-Key": "k"})
        assert ok(again, 201) == ok(first, 201)
        assert again["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first
        other = AT_ONCE | {"max_active": 9}
        refused(lambda: alice.post("/v1/limits", other, **{"Idempotency-Key": "k"}), 409, "idempotency_conflict")
        ok(lift(alice, ok(first, 201)), 204)
        refused(lambda: alice.post("/v1/limits", AT_ONCE, **{"Idempotency-Key": "k"}), 404, "not_found")

    def test_two_equal_requests_at_once_make_one(self, alice, monkeypatch):
        """The second looks for the key before the first has committed."""
        from orchestrator.idempotency import Repeatable  # noqa: PLC0415 to be bent

        first = alice.post("/v1/limits", AT_ONCE, **{"Idempotency-Key": "k"})
        known, asked = Repeatable.known, []
        monkeypatch.setattr(Repeatable, "known", lambda self: asked.append(1) or (known(self) if asked[1:] else None))
        again = alice.post("/v1/limits", AT_ONCE, **{"Idempotency-Key": "k"})
        assert (ok(again, 201), again["Idempotency-Replayed"]) == (ok(first, 201), "true")

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (RATE | {"max_active": 3}, "max_active"),
            (AT_ONCE | {"burst": 3}, "burst"),
            ({**AT_ONCE, "max_active": -1}, "max_active"),
            ({**AT_ONCE, "max_active": 10_001}, "max_active"),
            ({**AT_ONCE, "max_active": True}, "max_active"),
            ({**RATE, "per_hour": 0}, "per_hour"),
            ({name: RATE[name] for name in ("kind", "org_slug", "reason")}, "per_hour"),
            ({name: AT_ONCE[name] for name in ("kind", "org_slug", "reason")}, "max_active"),
            (EMERGENCY | {"job_type": "steps"}, "job_type"),
            (AT_ONCE | {"job_type": "none"}, "job_type"),
            (AT_ONCE | {"kind": "plan"}, "kind"),
            (AT_ONCE | {"kind": "pause"}, "kind"),
            (AT_ONCE | {"reason": ""}, "reason"),
            (AT_ONCE | {"reason": "x" * 501}, "reason"),
            ({name: AT_ONCE[name] for name in ("kind", "org_slug", "max_active")}, "reason"),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_refused_by_name(self, alice, body, field):
        assert field in refused(lambda: alice.post("/v1/limits", body), 400, "invalid")["errors"]

    def test_a_change_of_another_kind_or_of_nothing_is_refused(self, alice):
        shown = ok(alice.post("/v1/limits", AT_ONCE), 201)
        assert set(refused(lambda: change(alice, shown, {"burst": 1}), 400, "invalid")["errors"]) == {"burst"}
        refused(lambda: change(alice, shown, {}), 400, "invalid")
        refused(lambda: alice.call("DELETE", path_of(shown), **{"If-Match": '"1"'}), 400, "invalid_query")

    def test_what_follows_something_else_says_what(self, olga, organization, pool):
        organization.plan.max_active = 2
        organization.plan.save()
        lifecycle.keep_plan(org_slug=ORG)
        lifecycle.pause(subject=Subject.of_organization(ORG), by=OPERATOR, **WHY)
        lifecycle.throttle(subject=Subject(LimitScope.POOL, "", "shared-linux"), per_hour=6, by=OPERATOR, **WHY)
        assert {limit.kind for limit in Limit.objects.all()} == {"plan", "pause", "throttle"}
        for limit in Limit.objects.all():
            for act in (
                lambda limit=limit: change(olga, limit, {"max_active": 9}),
                lambda limit=limit: lift(olga, limit),
            ):
                refused(act, 409, "not_settable")

    def test_running_jobs_and_the_next_start_are_shown(self, alice, organization):
        at_once, rate = ok(alice.post("/v1/limits", AT_ONCE), 201), ok(alice.post("/v1/limits", RATE), 201)
        assert (at_once["running"], rate["running"], rate["next_start_at"]) == (0, None, None)
        worker = WorkerFactory()
        for _ in range(3):
            submitted(organization.projects.get())
        for _ in range(2):
            claimed(worker)
        assert lifecycle.claim(worker=worker, offer=offer(worker)) is None
        shown = {row["kind"]: row for row in ok(alice.get("/v1/limits"))["results"]}
        assert shown["organization"]["running"] == 2
        assert shown["organization"]["next_start_at"] is None
        assert shown["rate"]["waiting"] is True
        rate = Limit.objects.get(kind="rate")
        assert shown["rate"]["next_start_at"] == rate.next_start_at.isoformat().replace("+00:00", "Z")
        assert database_time() < rate.next_start_at < database_time() + timedelta(minutes=1)

    def test_a_list_is_filtered_and_costs_the_same_with_many(self, alice, django_assert_max_num_queries):
        for number in range(5):
            subject = Subject(LimitScope.PROJECT, ORG, f"web-{number}")
            lifecycle.pause(subject=subject, by=CI, **WHY)
        ok(alice.post("/v1/limits", RATE), 201)
        for query, count in {
            "": 6, "kind=pause": 5, "kind=rate": 1, "scope=project": 5, "scope=pool": 0, f"org_slug={ORG}&kind=rate": 1,
            "org_slug=other": 0, "limit=2": 2,
        }.items():  # fmt: skip
            assert len(ok(alice.get(f"/v1/limits?{query}"))["results"]) == count, query
        for wrong in ("kind=x", "scope=x", "key=web-1", "set_by=x", "ordering=id"):
            refused(lambda wrong=wrong: alice.get(f"/v1/limits?{wrong}"), 400, "invalid_query")
        with django_assert_max_num_queries(3):
            alice.get("/v1/limits")
        first = ok(alice.get("/v1/limits?limit=4"))
        rest = ok(alice.get(first["next"]))["results"]
        assert [row["limit_id"] for row in first["results"] + rest] == sorted(
            Limit.objects.values_list("pk", flat=True), reverse=True
        )


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
        """The verb looks itself, under the guard: what a view has seen may be over."""
        by_operator()
        with pytest.raises(OperatorOnly):
            lifecycle.set_limit(org_slug=ORG, max_active=9, by=CI, reason="mine")

    def test_emergencies_are_operators(self, alice, olga):
        refused(lambda: alice.post("/v1/limits", EMERGENCY), 403, "operator_only")
        shown = ok(olga.post("/v1/limits", EMERGENCY), 201)
        refused(lambda: change(alice, shown, {"max_active": 9}), 403, "operator_only")
        ok(change(olga, shown, {"max_active": 4}))

    def test_a_plans_limit_is_no_tokens(self, alice, organization):
        organization.plan.max_active = 2
        organization.plan.save()
        lifecycle.keep_plan(org_slug=ORG)
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
        lifecycle.pause(subject=Subject(LimitScope.POOL, "", pool.slug), by=OPERATOR, **WHY)
        lifecycle.pause(subject=Subject(LimitScope.JOB_TYPE, "", "runtime"), by=OPERATOR, **WHY)
        assert ok(alice.get("/v1/limits"))["results"] == []
        assert len(ok(olga.get("/v1/limits"))["results"]) == 2
        for limit in Limit.objects.all():
            refused(lambda limit=limit: alice.get(path_of(limit)), 404, "not_found")


class TestPauseResumeThrottle:
    @pytest.mark.parametrize("source", MINE, ids=str)
    def test_a_token_holds_its_own_and_lets_go(self, organization, stranger, source):
        alice = with_scopes(organization, Scope.ORCH_OPERATE)
        worker = WorkerFactory()
        submitted(organization.projects.get())
        until = (database_time() + timedelta(hours=1)).isoformat()
        paused = alice.post("/v1/limits/pause", {"source": source, "until": until, **WHY})
        shown = ok(paused)
        assert (shown["kind"], shown["reason"], paused["ETag"]) == ("pause", "test", '"1"')
        assert shown["next_start_at"] == shown["until"] != None  # noqa: E711 both at once
        assert lifecycle.claim(worker=worker, offer=offer(worker)) is None
        for verb, terms in VERBS:
            body = {"source": source, **terms, **WHY}
            refused(lambda verb=verb, body=body: stranger.post(f"/v1/limits/{verb}", body), 404, "not_found")
        ok(alice.post("/v1/limits/resume", {"source": source, **WHY}), 204)
        refused(lambda: alice.post("/v1/limits/resume", {"source": source, **WHY}), 404, "not_found")
        ok(alice.post("/v1/limits/throttle", {"source": source, "per_hour": 6, "burst": 2, **WHY}))
        assert lifecycle.claim(worker=worker, offer=offer(worker)) is not None
        ok(alice.post("/v1/limits/throttle", {"source": source, "per_hour": None, **WHY}), 204)
        assert not Limit.objects.exists()

    @pytest.mark.parametrize(("verb", "terms"), VERBS, ids=[verb for verb, _ in VERBS])
    @pytest.mark.parametrize("source", ALL, ids=str)
    def test_it_takes_the_right_to_operate(self, organization, vera, pool, source, verb, terms):
        body = {"source": source, **terms, **WHY}
        quota = with_scopes(organization, Scope.ORCH_READ, Scope.ORCH_QUOTA, Scope.JOBS_WRITE)
        for caller in (quota, vera):
            refused(lambda caller=caller: caller.post(f"/v1/limits/{verb}", body), 403, "insufficient_scope")

    @pytest.mark.parametrize(("verb", "terms"), VERBS, ids=[verb for verb, _ in VERBS])
    @pytest.mark.parametrize("source", [OF_EVERY_TYPE, OF_POOL], ids=str)
    def test_what_concerns_everybody_is_operators_with_the_permission(self, alice, olga, pool, source, verb, terms):
        body = {"source": source, **terms, **WHY}
        path = f"/v1/limits/{verb}"
        refused(lambda: alice.post(path, body), 404, "not_found")
        otto = Browser("otto", "runtime_jobs.operate_job")
        refused(lambda: otto.post(path, body), 403, "operator_only")
        if verb == "resume":
            ok(olga.post("/v1/limits/pause", body))
        ok(olga.post(path, body), 204 if verb == "resume" else 200)

    @pytest.mark.parametrize("source", MINE, ids=str)
    def test_an_operator_holds_a_tenants_and_the_tenant_cannot_let_go(self, alice, olga, source):
        ok(olga.post("/v1/limits/pause", {"source": source, **WHY}))
        ok(olga.post("/v1/limits/throttle", {"source": source, "per_hour": 6, **WHY}))
        soon = (database_time() + timedelta(seconds=1)).isoformat()
        for verb, terms in (*VERBS, ("pause", {"until": soon}), ("throttle", {"per_hour": None})):
            body = {"source": source, **terms, **WHY}
            refused(lambda verb=verb, body=body: alice.post(f"/v1/limits/{verb}", body), 403, "operator_only")
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

    @pytest.mark.parametrize("verb", ["pause", "throttle"])
    def test_a_time_that_is_over_is_refused(self, alice, verb):
        body = {"source": OF_ORGANIZATION, "until": "2020-01-01T00:00:00Z", **WHY}
        body |= {"per_hour": 6} if verb == "throttle" else {}
        document = refused(lambda: alice.post(f"/v1/limits/{verb}", body), 400, "invalid")
        assert set(document["errors"]) == {"until"}

    @pytest.mark.parametrize(
        "body", [{}, {"reason": ""}, {"until": "tomorrow", **WHY}, {"per_hour": 5, **WHY}], ids=str
    )
    def test_a_pause_says_why_and_nothing_foreign(self, alice, body):
        code = "unknown_field" if "per_hour" in body else "invalid"
        refused(lambda: alice.post("/v1/limits/pause", {"source": OF_ORGANIZATION} | body), 400, code)


class TestPools:
    PATHS = [
        ("POST", "pause", {}),
        ("POST", "resume", {}),
        ("POST", "throttle", {"per_hour": 6}),
        ("PATCH", "", {"policy": "fair"}),
    ]

    @pytest.mark.parametrize(("method", "verb", "terms"), PATHS, ids=str)
    def test_for_a_tenant_there_are_none_and_staff_need_the_permission(self, alice, vera, pool, method, verb, terms):
        for slug in ("shared-linux", "nowhere"):
            path = f"/v1/pools/{slug}/{verb}".rstrip("/")
            refused(lambda path=path: alice.call(method, path, terms | WHY), 404, "not_found")
            refused(lambda path=path: vera.call(method, path, terms | WHY), 403, "operator_only")

    @pytest.mark.parametrize(("method", "verb", "terms"), PATHS, ids=str)
    def test_a_scope_in_a_tokens_row_makes_nobody_an_operator(self, organization, pool, method, verb, terms):
        path = f"/v1/pools/shared-linux/{verb}".rstrip("/")
        token = with_scopes(organization, INSTALLATION, *Scope.values)
        refused(lambda: token.call(method, path, terms | WHY), 404, "not_found")

    @pytest.mark.parametrize(("method", "verb", "terms"), PATHS, ids=str)
    def test_what_is_not_there_is_not_there(self, olga, method, verb, terms):
        path = f"/v1/pools/nowhere/{verb}".rstrip("/")
        refused(lambda: olga.call(method, path, terms | WHY), 404, "not_found")

    def test_it_is_paused_resumed_and_throttled(self, olga, organization, pool):
        worker = WorkerFactory(pool=pool)
        submitted(organization.projects.get())
        shown = ok(olga.post("/v1/pools/shared-linux/pause", WHY))
        assert (shown["scope"], shown["key"], shown["org_slug"]) == ("pool", "shared-linux", None)
        assert lifecycle.claim(worker=worker, offer=offer(worker)) is None
        ok(olga.post("/v1/pools/shared-linux/resume", WHY), 204)
        assert ok(olga.post("/v1/pools/shared-linux/throttle", {"per_hour": 6, **WHY}))["per_hour"] == 6
        assert lifecycle.claim(worker=worker, offer=offer(worker)) is not None
        assert OperatorEvent.objects.filter(target="pool:shared-linux", actor="operator:olga").count() == 3

    def test_its_policy_changes(self, olga, pool):
        answer = olga.call("PATCH", "/v1/pools/shared-linux", {"policy": "fair", **WHY})
        assert ok(answer) == ok(olga.get("/v1/pools"))["results"][0]
        assert ok(answer)["policy"] == "fair"
        assert Pool.objects.get().policy == "fair"
        assert OperatorEvent.objects.get().action == "pool.policy"
        refused(lambda: olga.call("PATCH", "/v1/pools/shared-linux", {"policy": "x", **WHY}), 400, "invalid")


def broken(org_slug: str) -> Breaker:
    """The breaker of an organization whose runtime jobs all fail."""
    worker = WorkerFactory()
    project = ProjectFactory(organization=OrganizationFactory(slug=org_slug))
    for _ in range(12):
        submitted(project)
        taken = claimed(worker)
        lifecycle.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    found = lifecycle.attend_breaker(org_slug=org_slug, job_type="runtime")
    assert found.state == "open"
    return found


class TestBreakers:
    def test_an_open_one_is_seen_with_its_incident_and_reset(self, alice, organization):
        broken(ORG)
        (shown,) = ok(alice.get("/v1/breakers"))["results"]
        assert (shown["org_slug"], shown["job_type"], shown["state"]) == (ORG, "runtime", "open")
        assert shown["next_probe_at"] > shown["opened_at"]
        (incident,) = ok(alice.get("/v1/incidents"))["results"]
        assert incident["incident_id"].startswith("inc_")
        assert (incident["resolved_at"], incident["resolved_by"]) == (None, None)
        body = {"org_slug": ORG, "job_type": "runtime", **WHY}
        closed = ok(alice.post("/v1/breakers/reset", body))
        assert (closed["state"], closed["opened_at"], closed["next_probe_at"]) == ("closed", None, None)
        (incident,) = ok(alice.get("/v1/incidents"))["results"]
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
        assert len(ok(vera.get("/v1/breakers"))["results"]) == len(ok(vera.get("/v1/incidents"))["results"]) == 1
        refused(lambda: vera.post("/v1/breakers/reset", body), 403, "insufficient_scope")
        ok(olga.post("/v1/breakers/reset", body))

    def test_incidents_that_are_open_come_first_page_by_page(self, alice):
        at = database_time()
        for number, resolved in enumerate([None, at, None, at, None]):
            Incident.objects.create(
                kind="breaker",
                org_slug=ORG,
                job_type="runtime",
                summary=str(number),
                opened_at=at,
                resolved_at=resolved,
            )
        seen, path = [], "/v1/incidents?limit=2"
        while path:
            page = ok(alice.get(path))
            seen, path = seen + [row["summary"] for row in page["results"]], page["next"]
        assert seen == ["4", "2", "0", "3", "1"]
        for query, count in {"state=open": 3, "state=resolved": 2, "job_type=steps": 0, f"org_slug={ORG}": 5}.items():
            assert len(ok(alice.get(f"/v1/incidents?{query}"))["results"]) == count, query
        assert ok(alice.get("/v1/breakers?state=open&job_type=runtime"))["results"] == []


SUBMITS = {"/v1/runtime/jobs": SUBMIT_BODY, "/v1/jobs": SUBMIT_ANY_BODY}


@pytest.mark.parametrize("path", SUBMITS)
class TestSubmits:
    @pytest.mark.parametrize(("name", "number"), [(None, 200), ("low", 50), ("normal", 150)])
    def test_a_priority_up_to_the_plans(self, alice, path, name, number):
        assert ok(alice.post(path, SUBMITS[path] | {"priority": name}), 201)["priority"] == number

    @pytest.mark.parametrize("name", ["high", "emergency"])
    def test_not_above_it(self, alice, path, name):
        refused(lambda: alice.post(path, SUBMITS[path] | {"priority": name}), 403, "priority_forbidden")

    def test_an_emergency_where_an_operator_allowed_some(self, alice, olga, path):
        ok(olga.post("/v1/limits", EMERGENCY), 201)
        assert ok(alice.post(path, SUBMITS[path] | {"priority": "emergency"}), 201)["priority"] == 400

    def test_a_high_one_with_a_high_plan(self, alice, organization, path):
        organization.plan = PlanFactory(name="firm", priority=300)
        organization.save()
        assert ok(alice.post(path, SUBMITS[path] | {"priority": "high"}), 201)["priority"] == 250

    @pytest.mark.parametrize("wrong", ["urgent", 5, "LOW", "free", "enterprise", ""])
    def test_only_the_names(self, alice, path, wrong):
        refused(lambda: alice.post(path, SUBMITS[path] | {"priority": wrong}), 400, "invalid")

    @pytest.mark.parametrize(
        ("when_busy", "states"),
        [
            ("queue", ["queued", "queued"]),
            ("cancel_older", ["canceled", "queued"]),
            ("drop_new", ["queued", "canceled"]),
        ],
    )
    def test_a_key_keeps_jobs_apart(self, alice, path, when_busy, states):
        body = SUBMITS[path] | {"concurrency": {"key": "main", "when_busy": when_busy}}
        made = [ok(alice.post(path, body), 201) for _ in range(2)]
        assert [row["concurrency_key"] for row in made] == ["main", "main"]
        assert list(Job.objects.order_by("pk").values_list("state", flat=True)) == states
        assert ok(alice.post(path, SUBMITS[path]), 201)["concurrency_key"] is None

    @pytest.mark.parametrize(
        "wrong",
        [{}, {"key": ""}, {"key": "x" * 201}, {"key": "a", "when_busy": "x"}, {"key": "a", "x": 1}, "a", []],
        ids=str,
    )
    def test_a_key_that_makes_no_sense_is_refused(self, alice, path, wrong):
        code = "unknown_field" if "x" in wrong else "invalid"
        refused(lambda: alice.post(path, SUBMITS[path] | {"concurrency": wrong}), 400, code)


def test_a_verb_says_so_where_nothing_is_there(db):
    with pytest.raises(NotFound):
        lifecycle.reset_breaker(org_slug=ORG, job_type="runtime", by=CI, reason="test")
