"""Limits through the API: made, seen, changed by version, lifted, listed."""

from datetime import timedelta

import pytest

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.services import claiming, tenants
from runtime_jobs.db_time import database_now
from runtime_jobs.models import OperatorEvent
from tests.api_client import refused
from tests.factories import OPERATOR, WorkerFactory, claimed, limited, offer, submitted
from tests.orchestrator.protocols.native.limits.limit_requests import (
    AT_ONCE,
    CI,
    EMERGENCY,
    ORG,
    RATE,
    WHY,
    change,
    lift,
    ok,
    path_of,
)

pytestmark = pytest.mark.django_db


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
        for wrong in ("1", '"1', "", ",", "*, *", '*, "1"', '"1" x', '"\u00e4"', 'w/"1"'):
            headers = {"If-Match": wrong}
            document = refused(lambda headers=headers: alice.call(method, path, body, **headers), 400, "invalid")
            assert set(document["errors"]) == {"If-Match"}
        # If-Match compares strongly (RFC 9110, 13.1.1): a weak ETag, which a compressing proxy makes, never matches.
        for other in ('W/"1"', '"x"', '"2", W/"1"', '""', '"01"', f'"{10**400}"'):
            headers = {"If-Match": other}
            document = refused(
                lambda headers=headers: alice.call(method, path, body, **headers), 412, "version_conflict"
            )
            assert document["version"] == 1
            assert 'If-Match must be "1", without W/' in document["detail"]

    @pytest.mark.parametrize("tags", ["*", '"1"', '"7", "1"', 'W/"1" ,, "1",', '"a,b","1"', " * "])
    def test_any_version_and_one_of_many_may_be_named(self, alice, tags):
        shown = ok(alice.post("/v1/limits", AT_ONCE), 201)
        changed = alice.call("PATCH", path_of(shown), {"max_active": 4, **WHY}, **{"If-Match": tags})
        assert (ok(changed)["max_active"], changed["ETag"]) == (4, '"2"')
        removed = alice.call("DELETE", f"{path_of(shown)}?reason=x", **{"If-Match": tags.replace("1", "2")})
        assert removed.status_code == 204

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
        from orchestrator.core.idempotency import IdempotentRequest  # noqa: PLC0415 to be bent

        first = alice.post("/v1/limits", AT_ONCE, **{"Idempotency-Key": "k"})
        known, asked = IdempotentRequest.lookup, []
        monkeypatch.setattr(
            IdempotentRequest, "lookup", lambda self: asked.append(1) or (known(self) if asked[1:] else None)
        )
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
        tenants.sync_plan(org_slug=ORG)
        limited(ORG, kind=LimitKind.PAUSE, max_active=0, cause=Cause(OPERATOR, WHY["reason"]))
        limited(
            LimitTarget(LimitScope.POOL, "", "shared-linux"),
            kind=LimitKind.THROTTLE,
            per_hour=6,
            cause=Cause(OPERATOR, WHY["reason"]),
        )
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
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        shown = {row["kind"]: row for row in ok(alice.get("/v1/limits"))["results"]}
        assert shown["organization"]["running"] == 2
        assert shown["organization"]["next_start_at"] is None
        assert shown["rate"]["waiting"] is True
        rate = Limit.objects.get(kind="rate")
        assert shown["rate"]["next_start_at"] == rate.next_start_at.isoformat().replace("+00:00", "Z")
        assert database_now() < rate.next_start_at < database_now() + timedelta(minutes=1)

    def test_a_list_is_filtered_and_costs_the_same_with_many(self, alice, django_assert_max_num_queries):
        for number in range(5):
            subject = LimitTarget(LimitScope.PROJECT, ORG, f"web-{number}")
            limited(subject, kind=LimitKind.PAUSE, max_active=0, cause=Cause(CI, WHY["reason"]))
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
