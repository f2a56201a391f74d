"""`GET /api/events` and `GET /api/jobs/{id}/events`: each event once, only those of a tenant, and bad input."""

import itertools
import uuid

import pytest
from django.test import Client

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.services import job_end, retries
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import JobEvent, Membership
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, problem_of, refused
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.factories import OPERATOR as OLGA
from tests.older_transactions import wait_for_older_transactions

pytestmark = pytest.mark.django_db(transaction=True)  # pages end below the oldest open transaction


@pytest.fixture
def organization():
    return OrganizationFactory(slug="acme")


@pytest.fixture
def project(organization):
    return ProjectFactory(organization=organization)


@pytest.fixture
def caller(organization):
    return Caller(api_token(organization, (Scope.ORCH_READ,)))


def read_all(caller, path="/api/events?limit=2"):
    """All results of a list, by its pages."""
    wait_for_older_transactions()
    found = []
    while path:
        response = caller.get(path)
        assert response.status_code == 200, response.content
        page = response.json()
        assert set(page) == {"next", "previous", "results", "place"}
        assert page["previous"] is None
        found += page["results"]
        path = page["next"] and page["next"].removeprefix("http://testserver")
    return found, page["place"]


def run_one(project):
    job = submitted(project)
    lease = claimed(WorkerFactory()).lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed")
    return job


def test_all_events_of_a_tenant_in_order_and_then_only_later_ones(caller, project):
    jobs = [run_one(project) for _ in range(3)]
    run_one(ProjectFactory(organization=OrganizationFactory(slug="neighbour")))
    found, place = read_all(caller)
    assert {envelope["tenant"] for envelope in found} == {"acme"}
    assert len(found) == JobEvent.objects.filter(org_slug="acme").count() == len({e["eventId"] for e in found})
    for job in jobs:
        mine = [envelope for envelope in found if envelope["jobId"] == str(uuid_of(job.job_ulid))]
        assert [envelope["integrity"]["sequence"] for envelope in mine] == list(range(1, len(mine) + 1))
    assert caller.get(f"/api/events?after={place}").json()["results"] == []
    later = submitted(project)
    wait_for_older_transactions()
    (envelope,) = caller.get(f"/api/events?after={place}").json()["results"]
    assert (envelope["eventType"], envelope["jobId"]) == ("job.queued", str(uuid_of(later.job_ulid)))
    assert envelope["payload"]["status"] == "queued"


def test_filters(caller, project):
    first, second = run_one(project), run_one(project)
    record_operator_event("limit.set", target="acme", cause=Cause(OLGA), org_slug="acme", job_type="runtime")
    job_id = uuid_of(second.job_ulid)
    of = lambda query: [(e["eventType"], e["jobId"]) for e in read_all(caller, f"/api/events?{query}")[0]]  # noqa: E731
    assert {job for _, job in of(f"jobId={job_id}")} == {str(job_id)}
    assert of("eventType=job.failed") == [("job.failed", str(uuid_of(job.job_ulid))) for job in (first, second)]
    assert of("eventType=limit.set,quota.set") == [("limit.set", None)]
    assert of("jobType=scan") == []
    assert len(of("jobType=runtime,scan")) == len(of("tenant=acme"))


def test_the_events_of_a_job_contain_all_attempts(caller, project):
    job = run_one(project)
    retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again")
    path = f"/api/jobs/{uuid_of(job.job_ulid)}/events"
    found, place = read_all(caller, f"{path}?limit=2")
    keys = [(e["integrity"]["attempt"], e["integrity"]["sequence"]) for e in found]
    assert keys == sorted(keys)
    assert {attempt for attempt, _ in keys} == {1, 2}
    assert {e["jobId"] for e in found} == {str(uuid_of(job.job_ulid))}
    assert caller.get(f"{path}?after={place}").json()["results"] == []
    whole = {e["eventId"]: e for e in read_all(caller)[0]}
    assert all(whole[e["eventId"]] == e for e in found), "equal in every copy"
    for before, after in itertools.pairwise(found):
        if before["integrity"]["attempt"] == after["integrity"]["attempt"]:
            assert after["integrity"]["prevHash"] == before["integrity"]["hash"]


def test_no_id_of_a_lease_leaves(caller, project):
    job = submitted(project)
    lease = claimed().lease
    response = caller.get(f"/api/jobs/{uuid_of(job.job_ulid)}/events")
    assert lease.lease_ulid not in response.text
    assert lease.lease_ulid.removeprefix("rtl_") not in response.text


def test_the_scope_is_needed(organization, project):
    job = run_one(project)
    wrong = Caller(api_token(organization, tuple(scope for scope in Scope if scope != Scope.ORCH_READ)))
    for path in ("/api/events", f"/api/jobs/{uuid_of(job.job_ulid)}/events", "/api/dashboard/events"):
        assert problem_of(wrong.get(path))["scope"] == "orch:read"
        assert Caller().get(path).status_code == 401
        assert problem_of(Caller(WorkerFactory().token).get(path))["code"] == "wrong_principal"


def test_a_stranger_gets_what_a_missing_tenant_or_job_gets(project, caller):
    job = run_one(project)
    stranger = Caller(api_token(OrganizationFactory(slug="neighbour"), (Scope.ORCH_READ,)))

    def body(path):
        response = stranger.get(path, **{"X-Request-Id": "same"})
        assert response.status_code == 404
        return response.content

    for template, mine, missing in (
        ("/api/events?tenant={}", "acme", "nothing"),
        ("/api/dashboard/events?tenant={}", "acme", "nothing"),
        ("/api/events?jobId={}", uuid_of(job.job_ulid), uuid.uuid4()),
        ("/api/dashboard/events?jobId={}", uuid_of(job.job_ulid), uuid.uuid4()),
        ("/api/jobs/{}/events", uuid_of(job.job_ulid), uuid.uuid4()),
    ):
        assert body(template.format(mine)) == body(template.format(missing))
    assert read_all(stranger)[0] == []


def test_a_place_of_another_tenant_shows_nothing_of_it(caller, project):
    _, place = read_all(caller)
    run_one(project)
    stranger = Caller(api_token(OrganizationFactory(slug="neighbour"), (Scope.ORCH_READ,)))
    assert stranger.get(f"/api/events?after={place}").json()["results"] == []


def test_members_see_their_organizations_and_staff_all(organization, project, django_user_model):
    run_one(project)
    run_one(ProjectFactory(organization=OrganizationFactory(slug="neighbour")))
    record_operator_event("breaker.opened", target="*", cause=Cause(OLGA))
    mia, olga = django_user_model.objects.create_user("mia"), django_user_model.objects.create_superuser("olga")
    Membership.objects.create(user=mia, organization=organization)

    def tenants(user, query=""):
        wait_for_older_transactions()
        browser = Client()
        browser.force_login(user)
        return {envelope["tenant"] for envelope in browser.get(f"/api/events?limit=200{query}").json()["results"]}

    assert tenants(mia) == {"acme"}
    assert tenants(olga) == {"acme", "neighbour", None}
    assert tenants(olga, "&tenant=neighbour") == {"neighbour"}
    browser = Client()
    browser.force_login(django_user_model.objects.create_user("nobody"))
    assert browser.get("/api/events").status_code == 404


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("after=", "after"), ("after=-1", "after"), ("after=AAAAAAAAAAAAAAAAAAAAAA", "after"), ("after=" + "9" * 5000, "after"),
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("limit=%C2%B2", "limit"),
        ("jobType=nothing", "jobType"), ("jobType=scan,", "jobType"), ("jobType=" + "scan," * 30, "jobType"),
        ("eventType=job.exploded", "eventType"), ("eventType=token.created", "eventType"), ("eventType=limit.", "eventType"),
        ("jobId=1", "jobId"), ("jobId=rtj_01kkygkagq0jk17bx6y1w8c3df", "jobId"), ("color=red", "color"),
        ("access_token=rto_x", "access_token"),
        ("jobType=scan&jobType=export", "jobType"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/events", "/api/dashboard/events"])
def test_a_wrong_parameter_is_named(caller, path, query, parameter):
    if parameter == "limit" and path != "/api/events":
        query = "limit=1"
    document = refused(lambda: caller.get(f"{path}?{query}"), 400, "invalid_query")
    assert list(document["errors"]) == [parameter]


@pytest.mark.parametrize(
    "query", ["after=1", "after=1.x", "after=01.1", "after=1.1.1", "after=-1.1", "limit=999", "tenant=acme"]
)
def test_a_wrong_parameter_of_the_events_of_a_job_is_named(caller, project, query):
    path = f"/api/jobs/{uuid_of(run_one(project).job_ulid)}/events"
    refused(lambda: caller.get(f"{path}?{query}"), 400, "invalid_query")


@pytest.mark.parametrize("last_id", ["-1", "9" * 400, "garbage", "AAAAAAAAAAAAAAAAAAAAAA", "é"])
def test_a_wrong_last_event_id_is_refused(caller, last_id):
    document = refused(lambda: caller.get("/api/dashboard/events", **{"Last-Event-ID": last_id}), 400, "invalid")
    assert list(document["errors"]) == ["Last-Event-ID"]


def test_a_place_in_the_future_is_refused(caller, project, monkeypatch):
    run_one(project)
    monkeypatch.setattr("orchestrator.protocols.stella.events.parameters.is_future", lambda _: True)
    _, place = caller.get("/api/events").json()["results"], caller.get("/api/events").json()["place"]
    refused(lambda: caller.get(f"/api/events?after={place}"), 400, "invalid_query")


def test_a_process_without_streams_says_so(caller):
    document = problem_of(caller.get("/api/dashboard/events"))
    assert (document["status"], document["code"]) == (503, "no_streams")


def test_a_session_of_another_site_is_refused(organization, django_user_model):
    user = django_user_model.objects.create_user("mia")
    Membership.objects.create(user=user, organization=organization)
    browser = Client()
    browser.force_login(user)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert browser.get("/api/dashboard/events", headers=headers).status_code == 403
