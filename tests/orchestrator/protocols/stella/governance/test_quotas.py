"""Quotas through the API of document 004."""

from datetime import datetime, timedelta

import pytest
from django.db import connection

from leases.models import Limit
from orchestrator.services import cancellation, job_end
from runtime_jobs.models import Membership, OperatorEvent
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FailureReason
from tests.api_client import Caller, problem_of, refused
from tests.factories import OPERATOR, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.orchestrator.protocols.native.limits.limit_requests import ok

pytestmark = pytest.mark.django_db

ALL = "/api/quotas/demo:*"


def patch(caller, path, body, version=None, content_type="application/json"):
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    import json  # noqa: PLC0415 - beside its only use

    return caller.http.generic(
        "PATCH", path, json.dumps(body).encode(), content_type=content_type, headers=caller.headers | headers
    )


def quota(caller, path=ALL) -> dict:
    return ok(caller.get(path))


def listed(caller, path) -> list[dict]:
    found, next_path = [], path
    while next_path:
        page = ok(caller.get(next_path))
        found, next_path = found + page["results"], page["next"]
    return found


class TestReading:
    def test_a_quota_is_there_whether_or_not_anything_is_set(self, alice):
        found = quota(alice)
        unset = dict.fromkeys(["maxActive", "maxPerHour", "burst", "nextEligibleAt", "setBy", "setAt"])
        assert found == {
            "id": "demo:*", "tenant": "demo", "jobType": "*", "priority": {"emergency": None}, "active": 0,
            "startedLastHour": 0, "version": "0", **unset,
        }  # fmt: skip
        assert [row["id"] for row in listed(alice, "/api/quotas")] == [f"demo:{name}" for name in ("*", *JOB_TYPES)]

    def test_the_example_of_the_document(self, alice, olga):
        body = {"maxActive": 50, "maxPerHour": 500, "burst": 10}
        body |= {"priority": {"emergency": {"maxActive": 5, "skipQueue": True}}}
        ok(patch(olga, ALL, body, "0"))
        ok(patch(alice, "/api/quotas/demo:runtime", {"maxActive": 4, "maxPerHour": 100}, "0"))
        found = {row["id"]: row for row in listed(alice, "/api/quotas")}
        assert {name: found["demo:*"][name] for name in body} == body
        assert found["demo:*"]["setBy"] == {"kind": "operator", "id": "olga"}
        runtime = found["demo:runtime"]
        assert (runtime["maxActive"], runtime["maxPerHour"], runtime["burst"]) == (4, 100, 1)
        assert runtime["setBy"] == {"kind": "client", "id": "token test"}
        assert runtime["priority"] == {"emergency": None}

    def test_its_use_is_counted_by_type_and_for_all_types(self, alice, demo):
        project, worker = demo.projects.get(), WorkerFactory()
        for outcome in ("succeeded", "failed", "canceled", "running"):
            submitted(project)
            taken = claimed(worker)
            lease = {"lease_ulid": taken.lease.lease_ulid, "worker": worker}
            if outcome == "succeeded":
                job_end.complete(**lease, ingest_run_id="run_20260317143329_bd39b25f6f31")
            elif outcome == "failed":
                job_end.fail(**lease, reason=FailureReason.TIMED_OUT)
            elif outcome == "canceled":
                cancellation.cancel(job_ulid=taken.job.job_ulid, actor=OPERATOR, deadline_seconds=60)
                job_end.acknowledge_cancel(**lease)
        submitted(project)
        for name in ("*", "runtime"):
            found = quota(alice, f"/api/quotas/demo:{name}")
            assert (found["active"], found["startedLastHour"]) == (1, 4), name
        other = quota(alice, "/api/quotas/demo:steps")
        assert (other["active"], other["startedLastHour"]) == (0, 0)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE runtime_jobs SET started_at = started_at - interval '61 minutes'")
        assert quota(alice)["startedLastHour"] == 0

    def test_a_spent_rate_says_when_the_next_job_may_start(self, alice, demo):
        ok(patch(alice, ALL, {"maxPerHour": 60}, "0"))
        for _ in range(2):
            submitted(demo.projects.get())
        claimed()
        found = quota(alice)
        due = datetime.fromisoformat(found["nextEligibleAt"])
        set_at = datetime.fromisoformat(found["setAt"])
        assert timedelta(seconds=30) < due - set_at < timedelta(minutes=10)

    def test_lists_have_pages_and_filters(self, alice, stranger, olga):
        everything = [row["id"] for row in listed(olga, "/api/quotas")]
        assert len(everything) == 2 * (len(JOB_TYPES) + 1)
        assert [row["id"] for row in listed(olga, "/api/quotas?limit=3")] == everything
        assert [row["id"] for row in listed(olga, "/api/quotas?limit=1&jobType=steps")] == ["other:steps", "demo:steps"]
        page = ok(olga.get("/api/quotas?limit=3"))
        following = ok(olga.get(page["next"]))
        back = ok(olga.get(following["previous"]))
        assert (back["results"], back["previous"]) == (page["results"], None)
        assert {row["tenant"] for row in listed(olga, "/api/quotas?tenant=demo")} == {"demo"}
        refused(lambda: alice.get("/api/quotas?jobType=none"), 400, "invalid_query")
        refused(lambda: alice.get("/api/quotas?org_slug=demo"), 400, "invalid_query")


class TestChanging:
    def test_one_change_is_one_event(self, alice):
        refused(lambda: patch(alice, ALL, {"maxActive": 5}), 428, "precondition_required")
        answer = patch(alice, ALL, {"maxActive": 5, "maxPerHour": 60, "reason": "calm"}, "0")
        changed = ok(answer)
        assert answer["ETag"] == f'"{changed["version"]}"'
        assert alice.get(ALL)["ETag"] == answer["ETag"]
        assert (changed["maxActive"], changed["maxPerHour"], changed["burst"]) == (5, 60, 1)
        event = OperatorEvent.objects.get()
        assert (event.action, event.reason, event.org_slug) == ("quota.set", "calm", "demo")
        assert event.after == {"max_active": 5, "per_hour": 60, "burst": 1}

    def test_a_stale_version_is_refused_with_the_current_one(self, alice):
        changed = ok(patch(alice, ALL, {"maxActive": 5}, "0"))
        found = refused(lambda: patch(alice, ALL, {"maxActive": 6}, "0"), 412, "version_conflict")
        assert found["version"] == changed["version"]
        ok(patch(alice, ALL, {"maxActive": 6}, found["version"]))

    def test_it_is_a_merge_patch(self, alice):
        first = ok(patch(alice, ALL, {"maxActive": 5, "maxPerHour": 60, "burst": 3}, "0"))
        second = ok(patch(alice, ALL, {"maxActive": None}, first["version"], "application/merge-patch+json"))
        assert (second["maxActive"], second["maxPerHour"], second["burst"]) == (None, 60, 3)
        last = ok(patch(alice, ALL, {"maxPerHour": None}, second["version"]))
        assert (last["maxPerHour"], last["burst"], last["version"]) == (None, None, "0")
        assert not Limit.objects.exists()

    def test_an_emergency_limit_is_the_operators(self, alice, olga):
        emergency = {"maxActive": 9, "priority": {"emergency": {"maxActive": 5}}}
        refused(lambda: patch(alice, ALL, emergency, "0"), 403, "operator_only")
        assert quota(alice)["version"] == "0", "nothing is half written"
        changed = ok(patch(olga, ALL, emergency, "0"))
        assert changed["priority"] == {"emergency": {"maxActive": 5, "skipQueue": True}}
        for nothing in (None, {"emergency": None}):
            refused(
                lambda nothing=nothing: patch(alice, ALL, {"priority": nothing}, changed["version"]),
                403,
                "operator_only",
            )
        changed = ok(patch(olga, ALL, {"priority": None}, changed["version"]))
        assert changed["priority"] == {"emergency": None}

    @pytest.mark.parametrize(
        "body",
        [
            {}, {"reason": "calm"}, {"priority": {}}, {"maxActive": -1}, {"maxActive": 1_000_001}, {"maxActive": "5"},
            {"maxActive": 5.0}, {"maxActive": True}, {"maxPerHour": 0}, {"maxPerHour": 1_000_001}, {"burst": 0},
            {"burst": 5}, {"maxPerHour": 60, "burst": None}, {"maxPerHour": None, "burst": 5},
            {"priority": {"emergency": {}}}, {"priority": {"emergency": {"maxActive": 5, "skipQueue": False}}},
            {"priority": {"emergency": {"maxActive": -1}}}, {"priority": "high"}, {"maxActive": 5, "reason": "x" * 501},
        ],
    )  # fmt: skip
    def test_bad_input_changes_nothing(self, olga, body):
        document = refused(lambda: patch(olga, ALL, body, "0"), 400, "invalid")
        assert document["errors"]
        assert not Limit.objects.exists()

    @pytest.mark.parametrize("body", [{"max_active": 5}, {"maxActive": 5, "active": 3}, {"priority": {"high": {}}}])
    def test_unknown_members_are_refused(self, alice, body):
        refused(lambda: patch(alice, ALL, body, "0"), 400, "unknown_field")

    def test_only_all_types_together_have_emergencies(self, olga):
        body = {"priority": {"emergency": {"maxActive": 5}}}
        refused(lambda: patch(olga, "/api/quotas/demo:runtime", body, "0"), 400, "invalid")

    @pytest.mark.parametrize(
        ("tag", "status"),
        [("0", 400), ("", 400), ('W/"0"', 412), ('"1", W/"0"', 412), ('""', 412), ("*", 200), ('"1", "0"', 200)],
    )
    def test_if_match_is_any_version_or_a_list_that_is_compared_strongly(self, alice, tag, status):
        answer = alice.call("PATCH", ALL, {"maxActive": 1}, **{"If-Match": tag})
        assert answer.status_code == status
        assert Limit.objects.count() == (status == 200)
        if status == 412:
            assert answer.json()["version"] == "0"

    def test_json_and_merge_patches_are_read_and_nothing_else(self, alice):
        call = lambda: patch(alice, ALL, {"maxActive": 1}, "0", "application/json-patch+json")  # noqa: E731
        refused(call, 415, "unsupported_media_type")


class TestTenants:
    @pytest.mark.parametrize("name", ["other:*", "nobody:*", "demo:none", "demo", "demo:", ":*", "*:*", "demo:*:*"])
    def test_what_is_not_ones_own_is_not_there(self, alice, stranger, name):
        answers = [
            refused(lambda: alice.get(f"/api/quotas/{name}"), 404, "not_found"),
            refused(lambda: patch(alice, f"/api/quotas/{name}", {"maxActive": 1}, "0"), 404, "not_found"),
            refused(lambda: alice.get("/api/quotas/nobody:*"), 404, "not_found"),
        ]
        assert len({answer["detail"] for answer in answers}) == 1

    def test_a_list_of_another_tenant_is_not_there(self, alice, stranger):
        answers = [
            refused(lambda slug=slug: alice.get(f"/api/quotas?tenant={slug}"), 404, "not_found")
            for slug in ("other", "x")
        ]
        assert answers[0]["detail"] == answers[1]["detail"]
        assert {row["tenant"] for row in listed(alice, "/api/quotas")} == {"demo"}

    @pytest.mark.parametrize("scope", Scope.values)
    def test_each_scope_opens_its_own(self, demo, scope):
        caller = Caller(api_token(demo, (scope,)))
        assert caller.get("/api/quotas").status_code == (200 if scope == "orch:read" else 403)
        assert caller.get(ALL).status_code == (200 if scope == "orch:read" else 403)
        assert patch(caller, ALL, {"maxActive": 1}, "0").status_code == (200 if scope == "orch:quota" else 403)

    def test_a_worker_has_no_quotas(self, demo):
        answer = Caller(WorkerFactory().token).get(ALL)
        assert (answer.status_code, problem_of(answer)["code"]) == (403, "wrong_principal")

    def test_a_member_needs_the_role(self, demo, django_user_model):
        from django.test import Client  # noqa: PLC0415 - beside its only use

        member = django_user_model.objects.create_user("mona")
        membership = Membership.objects.create(user=member, organization=demo, role="viewer")
        ProjectFactory()
        mona = Caller()
        mona.http = Client(raise_request_exception=False)
        mona.http.force_login(member)
        assert {row["tenant"] for row in listed(mona, "/api/quotas")} == {"demo"}
        refused(lambda: patch(mona, ALL, {"maxActive": 1}, "0"), 403, "insufficient_scope")
        membership.role = "quota_manager"
        membership.save()
        ok(patch(mona, ALL, {"maxActive": 1}, "0"))
