"""Sources, and their pauses and throttles, through the API of document 004."""

from datetime import timedelta

import pytest

from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import claiming
from runtime_jobs.db_time import database_now
from runtime_jobs.models import OperatorEvent
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES
from tests.api_client import Caller, refused
from tests.factories import WorkerFactory, api_token, offer, submitted, submitted_steps
from tests.orchestrator.limits.test_rates_and_pauses import later
from tests.orchestrator.protocols.native.limits.limit_requests import ok
from tests.orchestrator.protocols.stella.governance.test_quotas import listed

pytestmark = pytest.mark.django_db

PAUSE, RESUME, THROTTLE = (f"/api/limits/{action}" for action in ("pause", "resume", "throttle"))
OF_TENANT, OF_TYPE, OF_PROJECT, OF_EVERY_TYPE = "demo:*", "demo:runtime", "demo/web", "*:runtime"


def source(caller, name: str) -> dict:
    (found,) = [row for row in listed(caller, "/api/sources") if row["sourceId"] == name]
    return found


def until(**kwargs) -> str:
    return (database_now() + timedelta(**kwargs)).isoformat()


class TestReading:
    def test_the_tenant_its_types_and_its_projects_are_sources(self, alice):
        rows = listed(alice, "/api/sources")
        assert [row["sourceId"] for row in rows] == [
            "demo:*",
            *sorted(f"demo:{name}" for name in JOB_TYPES),
            "demo/web",
        ]
        nothing = dict.fromkeys(["until", "maxPerHour", "burst", "setBy", "setAt"])
        assert rows[-1] == {
            "sourceId": "demo/web", "tenant": "demo", "jobType": None, "project": "web", "status": "active",
            "reason": "", "queued": 0, **nothing,
        }  # fmt: skip

    def test_each_counts_its_queued_jobs(self, alice, demo):
        for _ in range(2):
            submitted(demo.projects.get())
        submitted_steps(demo.projects.get())
        names = (OF_TENANT, OF_TYPE, "demo:steps", OF_PROJECT, "demo:oci")
        assert [source(alice, name)["queued"] for name in names] == [3, 2, 1, 3, 0]
        claiming.claim(worker=(worker := WorkerFactory()), offer=offer(worker))
        assert source(alice, OF_TYPE)["queued"] == 1

    def test_lists_have_pages_and_filters(self, alice, stranger, olga):
        everything = [row["sourceId"] for row in listed(olga, "/api/sources")]
        assert everything[-len(JOB_TYPES) :] == sorted(f"*:{name}" for name in JOB_TYPES), (
            "those of all tenants are last"
        )
        assert everything[0] == "other:*"
        assert [row["sourceId"] for row in listed(olga, "/api/sources?limit=5")] == everything
        page = ok(olga.get("/api/sources?limit=5"))
        following = ok(olga.get(page["next"]))
        back = ok(olga.get(following["previous"]))
        assert (back["results"], back["previous"]) == (page["results"], None)
        ok(alice.post(PAUSE, {"sourceId": OF_PROJECT}))
        assert [row["sourceId"] for row in listed(olga, "/api/sources?status=paused")] == [OF_PROJECT]
        assert OF_PROJECT not in [row["sourceId"] for row in listed(olga, "/api/sources?status=active&tenant=demo")]
        refused(lambda: alice.get("/api/sources?status=broken"), 400, "invalid_query")

    def test_a_tenant_sees_its_own(self, alice, stranger):
        assert {row["tenant"] for row in listed(alice, "/api/sources")} == {"demo"}
        answers = [
            refused(lambda slug=slug: alice.get(f"/api/sources?tenant={slug}"), 404, "not_found")
            for slug in ("other", "x")
        ]
        assert answers[0]["detail"] == answers[1]["detail"]


class TestPausing:
    @pytest.mark.parametrize("name", [OF_TENANT, OF_TYPE, OF_PROJECT])
    def test_a_paused_source_starts_nothing_until_it_is_resumed(self, alice, demo, name):
        submitted(demo.projects.get())
        worker = WorkerFactory()
        paused = ok(alice.post(PAUSE, {"sourceId": name, "reason": "the registry is down"}))
        assert (paused["status"], paused["reason"], paused["until"]) == ("paused", "the registry is down", None)
        assert paused["setBy"] == {"kind": "client", "id": "token test"}
        assert paused == source(alice, name)
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        assert ok(alice.post(RESUME, {"sourceId": name}))["status"] == "active"
        refused(lambda: alice.post(RESUME, {"sourceId": name}), 404, "not_found")
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None
        assert list(OperatorEvent.objects.order_by("id").values_list("action", flat=True)) == [
            "limit.set",
            "limit.lifted",
        ]

    def test_a_pause_with_an_end_ends_by_itself(self, alice, demo):
        submitted(demo.projects.get())
        worker = WorkerFactory()
        end = until(hours=1)
        paused = ok(alice.post(PAUSE, {"sourceId": OF_TYPE, "until": end}))
        assert paused["until"][:19] == end[:19]
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        later(hours=1.1)
        assert source(alice, OF_TYPE)["status"] == "active", "before the scheduler has removed it"
        sweep_scheduling()
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None

    def test_a_throttled_source_starts_so_many(self, alice, demo):
        for _ in range(4):
            submitted(demo.projects.get())
        worker = WorkerFactory()
        throttled = ok(
            alice.post(THROTTLE, {"sourceId": OF_TYPE, "maxPerHour": 60, "burst": 2, "until": until(hours=2)})
        )
        assert (throttled["status"], throttled["maxPerHour"], throttled["burst"]) == ("throttled", 60, 2)
        taken = [claiming.claim(worker=worker, offer=offer(worker)) for _ in range(3)]
        assert [one is not None for one in taken] == [True, True, False]
        assert ok(alice.post(THROTTLE, {"sourceId": OF_TYPE, "maxPerHour": None}))["status"] == "active"
        refused(lambda: alice.post(THROTTLE, {"sourceId": OF_TYPE, "maxPerHour": None}), 404, "not_found")
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None

    def test_what_an_operator_paused_a_tenant_does_not_resume(self, alice, olga):
        ok(olga.post(PAUSE, {"sourceId": OF_TENANT}))
        refused(lambda: alice.post(RESUME, {"sourceId": OF_TENANT}), 403, "operator_only")
        refused(lambda: alice.post(PAUSE, {"sourceId": OF_TENANT, "until": until(minutes=1)}), 403, "operator_only")

    def test_a_type_of_all_tenants_is_the_operators(self, alice, olga, demo):
        submitted(demo.projects.get())
        worker = WorkerFactory()
        found = refused(lambda: alice.post(PAUSE, {"sourceId": OF_EVERY_TYPE}), 404, "not_found")
        assert found["detail"] == refused(lambda: alice.post(PAUSE, {"sourceId": "*:none"}), 404, "not_found")["detail"]
        paused = ok(olga.post(PAUSE, {"sourceId": OF_EVERY_TYPE}))
        assert (paused["tenant"], paused["status"], paused["queued"]) == (None, "paused", 1)
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        ok(olga.post(RESUME, {"sourceId": OF_EVERY_TYPE}))

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (PAUSE, {}),
            (PAUSE, {"sourceId": 7}),
            (PAUSE, {"sourceId": "x" * 131}),
            (PAUSE, {"sourceId": OF_TYPE, "until": "2020-01-01T00:00:00Z"}),
            (PAUSE, {"sourceId": OF_TYPE, "until": "tomorrow"}),
            (THROTTLE, {"sourceId": OF_TYPE}),
            (THROTTLE, {"sourceId": OF_TYPE, "maxPerHour": 0}),
            (THROTTLE, {"sourceId": OF_TYPE, "maxPerHour": 1_000_001}),
            (THROTTLE, {"sourceId": OF_TYPE, "maxPerHour": 1, "burst": 0}),
        ],
    )
    def test_bad_input_changes_nothing(self, alice, path, body):
        refused(lambda: alice.post(path, body), 400, "invalid")
        assert {row["status"] for row in listed(alice, "/api/sources")} == {"active"}

    @pytest.mark.parametrize("path", [PAUSE, RESUME, THROTTLE])
    @pytest.mark.parametrize("name", ["other:*", "other/web", "other:runtime", "demo/none", "demo:none", "demo", ""])
    def test_what_is_not_ones_own_is_not_there(self, alice, stranger, path, name):
        body = {"sourceId": name} | ({"maxPerHour": 5} if path == THROTTLE else {})
        missing = body | {"sourceId": "nobody:*"}
        if name:
            answers = [refused(lambda body=body: alice.post(path, body), 404, "not_found") for body in (body, missing)]
            assert answers[0]["detail"] == answers[1]["detail"]
        else:
            refused(lambda: alice.post(path, body), 400, "invalid")

    @pytest.mark.parametrize("scope", Scope.values)
    def test_each_scope_opens_its_own(self, demo, scope):
        caller = Caller(api_token(demo, (scope,)))
        assert caller.get("/api/sources").status_code == (200 if scope == "orch:read" else 403)
        expected = [200, 200, 200] if scope == "orch:quota" else [403] * 3
        bodies = ((PAUSE, {}), (RESUME, {}), (THROTTLE, {"maxPerHour": 5}))
        assert [caller.post(path, {"sourceId": OF_TYPE} | body).status_code for path, body in bodies] == expected
