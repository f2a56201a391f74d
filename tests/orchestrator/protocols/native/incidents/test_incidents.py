"""Incidents and incident mode through the API."""

from datetime import timedelta

import pytest

from orchestrator.core.cause import Cause
from orchestrator.incidents import incident_mode
from orchestrator.incidents.models import Incident
from orchestrator.services import job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.models.tenants import Scope
from runtime_jobs.states import FailureReason
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.orchestrator.protocols.native.limits.limit_requests import CI, ORG, WHY, Browser, ok, with_scopes

pytestmark = pytest.mark.django_db

NOT_THERE = "inc_01kkygkagq0jk17bx6y1w8c3df"


@pytest.fixture
def stranger(organization) -> Caller:
    """A program of another organization, with every scope."""
    other = OrganizationFactory(slug="other")
    ProjectFactory(organization=other)
    return Caller(api_token(other))


@pytest.fixture
def incident(organization) -> Incident:
    """That of a job whose worker failed."""
    submitted(organization.projects.get())
    taken = claimed(worker := WorkerFactory())
    job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    return Incident.objects.get()


def path(incident, action: str = "") -> str:
    return f"/v1/incidents/{getattr(incident, 'incident_ulid', incident)}{action and '/'}{action}"


class TestIncidents:
    def test_one_is_read_acknowledged_and_resolved(self, alice, incident):
        shown = ok(alice.get(path(incident)))
        assert shown == ok(alice.get("/v1/incidents"))["results"][0]
        assert (shown["kind"], shown["status"], shown["reason"]) == ("job", "open", "worker_error")
        assert shown["job_id"] == Job.objects.get().job_ulid
        seen = ok(alice.post(path(incident, "acknowledge"), WHY))
        assert (seen["status"], seen["acknowledged_by"]) == ("acknowledged", {"kind": "client", "id": "token test"})
        assert ok(alice.post(path(incident, "acknowledge"), WHY)) == seen
        done = ok(alice.post(path(incident, "resolve"), {"reason": "a new disk"}))
        assert (done["status"], done["resolution"]) == ("resolved", "a new disk")
        assert ok(alice.post(path(incident, "resolve"), WHY)) == done
        refused(lambda: alice.post(path(incident, "acknowledge"), WHY), 409, "conflict")
        assert ok(alice.get(f"/v1/jobs/{shown['job_id']}"))["status"] == "failed"

    def test_that_of_a_breaker_is_not_resolved_by_hand(self, alice, organization):
        found = Incident.objects.create(
            kind="breaker", org_slug=ORG, job_type="runtime", summary="x", opened_at=database_now()
        )
        refused(lambda: alice.post(path(found, "resolve"), WHY), 409, "not_settable")

    def test_those_that_are_unresolved_come_first_page_by_page(self, alice):
        at = database_now()
        for number, resolved in enumerate([None, at, None, at, None]):
            Incident.objects.create(
                kind="breaker",
                org_slug=ORG,
                job_type="runtime",
                summary=str(number),
                opened_at=at,
                acknowledged_at=at if number == 2 else None,
                resolved_at=resolved,
            )
        seen, page_path = [], "/v1/incidents?limit=2"
        while page_path:
            page = ok(alice.get(page_path))
            seen, page_path = seen + [row["summary"] for row in page["results"]], page["next"]
        assert seen == ["4", "2", "0", "3", "1"]
        counts = {"state=open": 2, "state=acknowledged": 1, "state=resolved": 2, "job_type=steps": 0, "kind=job": 0}
        for query, count in (counts | {f"org_slug={ORG}": 5, "job_id=rtj_x": 0}).items():
            assert len(ok(alice.get(f"/v1/incidents?{query}"))["results"]) == count, query

    @pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "x" * 501}, {"reason": 5}])
    def test_a_reason_is_needed(self, alice, incident, body):
        for action in ("acknowledge", "resolve"):
            refused(lambda action=action: alice.post(path(incident, action), body), 400, "invalid")

    def test_anothers_is_not_there(self, stranger, incident):
        for call in (
            lambda which: stranger.get(path(which)),
            lambda which: stranger.post(path(which, "acknowledge"), WHY),
            lambda which: stranger.post(path(which, "resolve"), WHY),
        ):
            answers = [
                refused(lambda which=which, call=call: call(which), 404, "not_found") for which in (incident, NOT_THERE)
            ]
            assert answers[0]["detail"] == answers[1]["detail"]

    def test_changing_needs_the_scope(self, organization, incident):
        reader = with_scopes(organization, Scope.ORCH_READ)
        ok(reader.get(path(incident)))
        for action in ("acknowledge", "resolve"):
            refused(lambda action=action: reader.post(path(incident, action), WHY), 403, "insufficient_scope")
        operator = with_scopes(organization, Scope.ORCH_OPERATE)
        refused(lambda: operator.get(path(incident)), 403, "insufficient_scope")
        ok(operator.post(path(incident, "resolve"), WHY))


class TestIncidentMode:
    def body(self, **changes) -> dict:
        return {"org_slug": ORG, "until": (database_now() + timedelta(hours=1)).isoformat(), **WHY} | changes

    def test_it_begins_and_ends(self, alice, stranger):
        mode = ok(alice.post("/v1/incident-modes", self.body()))
        assert (mode["org_slug"], mode["reason"], mode["begun_by"]["kind"]) == (ORG, "test", "client")
        assert ok(alice.get("/v1/incident-modes"))["results"] == [mode]
        assert ok(stranger.get("/v1/incident-modes"))["results"] == []
        end = {"org_slug": ORG, **WHY}
        ok(alice.post("/v1/incident-modes/end", end), 204)
        refused(lambda: alice.post("/v1/incident-modes/end", end), 404, "not_found")
        assert ok(alice.get("/v1/incident-modes"))["results"] == []

    def test_operators_see_all(self, alice, organization):
        ok(alice.post("/v1/incident-modes", self.body()))
        assert len(ok(Browser("olga", "runtime_jobs.operate_job").get("/v1/incident-modes"))["results"]) == 1

    def test_bad_input_changes_nothing(self, alice, organization):
        late = (database_now() + timedelta(days=32)).isoformat()
        for changes in ({"until": None}, {"until": "2020-01-01T00:00:00Z"}, {"until": late}, {"reason": ""}):
            refused(lambda changes=changes: alice.post("/v1/incident-modes", self.body(**changes)), 400, "invalid")

    def test_it_needs_the_scope(self, organization):
        reader = with_scopes(organization, Scope.ORCH_READ)
        refused(lambda: reader.post("/v1/incident-modes", self.body()), 403, "insufficient_scope")
        incident_mode.begin_incident_mode(org_slug=ORG, cause=Cause(CI, "x"), until=database_now() + timedelta(hours=1))
        refused(lambda: reader.post("/v1/incident-modes/end", {"org_slug": ORG, **WHY}), 403, "insufficient_scope")
