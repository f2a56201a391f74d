"""A limit of the running jobs of one project: set by the API, decided by the claim, explained to those who wait."""

import pytest

from leases.models import Limit, LimitKind, LimitSlot
from leases.scheduling.limits import LimitTarget
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.services import claiming, job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import OperatorOnly
from runtime_jobs.models import OperatorEvent
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import FailureReason
from tests.api_client import refused
from tests.factories import (
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    submitted,
    submitted_steps,
)
from tests.orchestrator.protocols.native.limits.limit_requests import CI, ORG, WHY, change, lift, ok, path_of

pytestmark = pytest.mark.django_db
BODY = {"kind": "project", "org_slug": ORG, "project_slug": "web", "max_active": 2, **WHY}
WEB = {"target": LimitTarget.of_project(ORG, "web"), "kind": LimitKind.PROJECT}


@pytest.fixture
def web(organization):
    found = organization.projects.get()
    assert found.slug == "web"
    return found


TYPES = ("runtime", "steps")


def is_claimable(worker) -> bool:
    return claiming.claim(worker=worker, offer=offer(worker, job_types=TYPES)) is not None


def test_a_limit_is_created_changed_and_removed(alice, web):
    made = alice.post("/v1/limits", BODY)
    shown = ok(made, 201)
    assert (made["ETag"], made["Location"]) == ('"1"', path_of(shown))
    named = {name: shown[name] for name in ("kind", "scope", "org_slug", "key", "max_active", "running")}
    assert named == {
        "kind": "project", "scope": "project", "org_slug": ORG, "key": "web", "max_active": 2, "running": 0
    }  # fmt: skip
    assert ok(change(alice, shown, {"max_active": 7}))["max_active"] == 7
    assert [row["kind"] for row in ok(alice.get("/v1/limits?scope=project&kind=project"))["results"]] == ["project"]
    ok(lift(alice, shown, version=2), 204)
    assert not Limit.objects.exists()
    assert not LimitSlot.objects.exists()
    events = OperatorEvent.objects.order_by("pk").values_list("action", "target")
    assert list(events) == [(action, f"project:{ORG}/web") for action in ("limit.set", "limit.set", "limit.lifted")]


def test_a_second_one_is_a_conflict_and_a_repetition_gets_the_first_answer(alice, web):
    key = {"Idempotency-Key": "k"}
    first = alice.post("/v1/limits", BODY, **key)
    assert ok(alice.post("/v1/limits", BODY, **key), 201) == ok(first, 201)
    text = refused(lambda: alice.post("/v1/limits", BODY), 409, "conflict")["detail"]
    assert "project web already" in text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"project_slug": None}, "project_slug"),
        ({"project_slug": "Web"}, "project_slug"),
        ({"project_slug": ...}, "project_slug"),
        ({"max_active": ...}, "max_active"),
        ({"per_hour": 5}, "per_hour"),
        ({"burst": 5}, "burst"),
        ({"job_type": "steps"}, "job_type"),
        ({"kind": "organization"}, "project_slug"),
        ({"kind": "emergency"}, "project_slug"),
        ({"kind": "rate", "per_hour": 5, "max_active": ...}, "project_slug"),
    ],
    ids=str,
)
def test_a_wrong_member_is_refused_by_name(alice, web, changes, field):
    body = {name: value for name, value in (BODY | changes).items() if value is not ...}
    assert field in refused(lambda: alice.post("/v1/limits", body), 400, "invalid")["errors"]
    assert not Limit.objects.exists()


def test_an_unknown_project_and_another_tenants_are_404(alice, stranger, web):
    refused(lambda: alice.post("/v1/limits", BODY | {"project_slug": "absent"}), 404, "not_found")
    refused(lambda: stranger.post("/v1/limits", BODY), 404, "not_found")
    refused(lambda: alice.post("/v1/limits", BODY | {"org_slug": "other"}), 404, "not_found")
    assert not Limit.objects.exists()


def test_a_client_does_not_change_the_limit_of_an_operator(alice, olga, web):
    limit = limited(**WEB, max_active=1)
    refused(lambda: change(alice, limit, {"max_active": 9}), 403, "operator_only")
    refused(lambda: lift(alice, limit), 403, "operator_only")
    with pytest.raises(OperatorOnly):
        limited(**WEB, max_active=9, cause=Cause(CI, "mine"))
    assert ok(change(olga, limit, {"max_active": 4}))["max_active"] == 4


def test_the_claim_counts_all_types_of_the_project_and_no_other_project(web):
    worker, other = WorkerFactory(capacity=9), ProjectFactory(organization=web.organization, slug="other")
    foreign = ProjectFactory(organization=OrganizationFactory(slug="foreign"), slug="web")
    limited(**WEB, max_active=2)
    for submit in (submitted, submitted_steps, submitted):
        submit(web)
    first, second = (claimed(worker, job_types=TYPES) for _ in range(2))
    assert {first.job.job_type, second.job.job_type} == {"runtime", "steps"}
    assert not is_claimable(worker), "the third job of the project waits"
    for project in (other, foreign):
        submitted(project)
        assert is_claimable(worker)
    job_end.fail(lease_ulid=second.lease.lease_ulid, worker=worker, reason=FailureReason.TIMED_OUT)
    assert is_claimable(worker)
    assert Limit.objects.counted().get().running == 2
    assert run_audit(chains=True) == []


def test_a_new_limit_counts_what_runs_already_and_a_raised_one_starts_more(web):
    worker = WorkerFactory(capacity=9)
    for _ in range(4):
        submitted(web)
    for _ in range(2):
        claimed(worker)
    limited(**WEB, max_active=1)
    assert Limit.objects.counted().get().running == 2
    assert not is_claimable(worker)
    limited(**WEB, max_active=3)
    assert is_claimable(worker)
    assert not is_claimable(worker)
    limited(**WEB)
    assert is_claimable(worker)
    assert run_audit(chains=True) == []


def test_a_job_that_waits_for_it_has_a_reason(alice, web):
    worker = WorkerFactory(capacity=9, last_seen_at=database_now(), offered_types=["runtime"])
    limited(**WEB, max_active=1)
    submitted(web)
    claimed(worker)
    waiting = submitted(web)
    reason = ok(alice.get(f"/v1/jobs/{waiting.job_ulid}"))["pending_reason"]
    assert (reason["code"], reason["limit"]["kind"], reason["limit"]["key"]) == ("organization_limit", "project", "web")
    assert reason["message"] == f"The project {ORG}/web may run at most 1 job at once."


def test_an_emergency_counts_and_is_not_stopped(web):
    worker = WorkerFactory(capacity=9)
    limited(ORG, kind=LimitKind.EMERGENCY, max_active=5)
    limited(**WEB, max_active=1)
    for _ in range(2):
        submitted(web, priority=EMERGENCY)
        claimed(worker)
    assert LimitTarget.of_project(ORG, "web").limit(LimitKind.PROJECT) is not None
    submitted(web)
    assert not is_claimable(worker)
    assert run_audit(chains=True) == []
