"""`POST /api/graphql` about fifty jobs of all statuses, and the same of the REST API. No test changes the jobs."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leases.models import LimitKind
from orchestrator.core.cause import Cause
from orchestrator.services import claiming
from runtime_jobs.specs import PAYLOAD_TYPES
from tests.api_client import Caller
from tests.factories import (
    ALICE,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    limited,
    offer,
)
from tests.orchestrator.protocols.stella.graph.documents import CHILDREN, JOBS, data, error, members
from tests.orchestrator.protocols.stella.requests import MISSING, claim, complete, fail, ok, submit
from tests.shared_rows import shared_rows

pytestmark = pytest.mark.django_db


def fifty_jobs(alice, worker):
    """Fifty jobs of all statuses, with retries, dependencies and an incident. Returns them by what they became."""
    done = submit(alice)
    complete(claim(worker), verdict="pass", outputs={"findings": 3})
    incident = submit(alice)
    while (found := next_claim(worker)) is not None:
        fail(found, "worker_error")
    running = submit(alice)
    claim(worker)
    leased = submit(alice)
    claim(worker, acknowledge=True)
    canceled = submit(alice)
    ok(alice.post(f"/api/jobs/{canceled['jobId']}/cancel", {}))
    blocked = submit(alice, dependencies=[running["jobId"], done["jobId"]])
    waiting = [submit(alice, dependencies=[running["jobId"]], priority="low") for _ in range(3)]
    queued = [submit(alice, dependencies=[done["jobId"]]) for _ in range(50 - 9)]
    return {
        "done": done,
        "incident": incident,
        "running": running,
        "leased": leased,
        "canceled": canceled,
        "blocked": blocked,
        "waiting": waiting,
        "queued": queued,
    }


def next_claim(worker):
    return claiming.claim(worker=worker, offer=offer(worker, job_types=PAYLOAD_TYPES), acknowledge=False)


@pytest.fixture(scope="module")
def scene(django_db_setup, django_db_blocker):
    """A client and its jobs, which take seconds to submit and are only read."""

    def build():
        organization = OrganizationFactory(slug="acme-corp")
        alice = Caller(api_token(ProjectFactory(organization=organization).organization))
        return alice, fifty_jobs(alice, WorkerFactory())

    with shared_rows("scene", build, django_db_blocker) as rows:
        yield rows


@pytest.fixture
def alice(scene):
    return scene.value[0]


@pytest.fixture
def jobs(scene):
    return scene.value[1]


def test_jobs_are_those_of_the_rest_api(alice, jobs):
    found = data(alice, f"{{ jobs(first: 100) {{ results {{ {members('Job')} }} next }} }}")["jobs"]
    rest = ok(alice.get("/api/jobs?limit=200"))["results"]
    assert found["next"] is None
    assert len(found["results"]) == 50
    details = {"pendingReason", "queuePosition", "progress", "failure", "incident"}
    assert [{k: v for k, v in job.items() if k not in details} for job in found["results"]] == rest
    assert {job["status"] for job in rest} >= {
        *("created", "queued", "leased", "running", "completed", "canceled", "incident"),
    }


@pytest.mark.parametrize("name", ["done", "incident", "running", "blocked", "canceled"])
def test_one_job_is_that_of_the_rest_api(alice, jobs, name):
    job_id = jobs[name]["jobId"]
    found = data(alice, f"query($id: ID!) {{ job(jobId: $id) {{ {members('JobDetail')} {CHILDREN} }} }}", id=job_id)[
        "job"
    ]
    rest = ok(alice.get(f"/api/jobs/{job_id}"))
    events = ok(alice.get(f"/api/jobs/{job_id}/events?limit=200"))["results"]
    for event in events:
        event["payload"] = {"status": None, "duration": None, "result": None} | event["payload"]
    del rest["replays"]
    assert found.pop("events") == events[::-1][:10]
    assert found.pop("attempts") == rest.pop("attempts")[::-1][:5]
    for relation in ("dependencies", "dependents"):
        shown = found.pop(relation)
        assert [job["jobId"] for job in shown] == rest.pop(relation)[:10]
        for job in shown:
            listed = ok(alice.get(f"/api/jobs/{job['jobId']}"))
            assert job == {member: listed[member] for member in job}
    assert found == rest


def test_fifty_jobs_with_children_take_eight_statements(alice, jobs):
    query = f"{{ jobs(first: 50) {{ results {{ {members('Job')} {CHILDREN} }} }} }}"
    with CaptureQueriesContext(connection) as queries:
        found = data(alice, query)["jobs"]["results"]
    assert len(found) == 50
    assert sum(len(job["dependencies"]) for job in found) == 2 + 3 + 41
    assert max(len(job["dependents"]) for job in found) == 10
    assert all(job["events"] and job["attempts"] for job in found)
    statements = [query["sql"] for query in queries if "runtime_jobs_apitoken" not in query["sql"]]
    assert len(statements) <= 8, "\n\n".join(statement[:300] for statement in statements)


def test_further_levels_take_one_statement_each(alice, jobs):
    query = "{ jobs(first: 50) { results { dependents(first: 3) { dependencies(first: 3) { jobId status } } } } }"
    with CaptureQueriesContext(connection) as queries:
        found = data(alice, query)["jobs"]["results"]
    assert any(job["dependents"] for job in found)
    assert len(queries) <= 1 + 2 + 2 + 4, "token, page and rows, two levels, reasons"


def test_pages_have_each_job_once(alice, jobs):
    found, after = [], None
    while True:
        page = data(alice, JOBS, first=20, after=after)["jobs"]
        found += [job["jobId"] for job in page["results"]]
        after = page["next"]
        if after is None:
            break
    assert found == [job["jobId"] for job in ok(alice.get("/api/jobs?limit=200"))["results"]]
    assert len(found) == 50


def test_a_cursor_is_of_its_list_and_filters(alice, jobs):
    cursor = data(alice, JOBS, first=5)["jobs"]["next"]
    filtered = 'query($after: String) { jobs(first: 5, after: $after, jobType: "scan") { next } }'
    for found in (error(alice, filtered, after=cursor), error(alice, JOBS, first=5, after="x")):
        assert (found["extensions"]["code"], found["extensions"]["errors"].keys()) == ("invalid", {"after"})
    assert error(alice, "query($a: String) { quotas(first: 1, after: $a) { next } }", a=cursor)["path"] == ["quotas"]


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "completed"},
        {"status": "queued"},
        {"status": "created"},
        {"status": "incident"},
        {"status": "failed"},
        {"status": "throttled"},
        {"priority": "low"},
        {"jobType": "export"},
        {"tenant": "acme-corp", "createdAfter": "2020-01-01T00:00:00Z"},
        {"correlationId": "nothing"},
        {"replayOf": MISSING},
    ],
)
def test_filters_are_those_of_the_rest_api(alice, jobs, filters):
    arguments = ", ".join(f'{name}: "{value}"' for name, value in filters.items())
    found = data(alice, f"{{ jobs(first: 100, {arguments}) {{ results {{ jobId status }} }} }}")["jobs"]["results"]
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    rest = ok(alice.get(f"/api/jobs?limit=200&{query}"))["results"]
    assert found == [{"jobId": job["jobId"], "status": job["status"]} for job in rest]


def test_quotas_sources_events_and_the_dashboard_are_those_of_the_rest_api(alice, jobs):
    limited("acme-corp", kind=LimitKind.RATE, per_hour=1)
    limited("acme-corp", "export", kind=LimitKind.PAUSE, max_active=0, cause=Cause(ALICE, "y"))
    found = data(
        alice,
        f"""{{ quotas(first: 100) {{ results {{ {members("Quota")} }} next }}
               quota(id: "acme-corp:*") {{ {members("Quota")} }}
               sources(first: 100) {{ results {{ {members("Source")} }} next }}
               events(first: 100, eventTypes: ["job.queued", "limit.set"]) {{ {members("EventPage")} }}
               dashboard {{ {members("Dashboard")} }} }}""",
    )
    quotas = ok(alice.get("/api/quotas?limit=200"))["results"]
    assert found["quotas"] == {"results": quotas, "next": None}
    assert found["quota"] in quotas
    assert found["sources"] == {"results": ok(alice.get("/api/sources?limit=200"))["results"], "next": None}
    events = ok(alice.get("/api/events?limit=100&eventType=job.queued,limit.set"))
    for event in events["results"]:
        event["payload"] = {"status": None, "duration": None, "result": None} | event["payload"]
    assert found["events"]["results"] == events["results"]
    assert found["events"]["isComplete"] is True
    dashboard = ok(alice.get("/api/dashboard/metrics"))
    assert found["dashboard"] | {"measuredAt": 0} == dashboard | {"measuredAt": 0}


def test_another_tenant_sees_nothing_in_lists(alice, intruder, jobs):
    found = data(
        intruder,
        """{ jobs(first: 100) { results { jobId } } quotas(first: 100) { results { tenant } }
             sources(first: 100) { results { tenant } } events(first: 100) { results { tenant } }
             dashboard { tenants jobs { queued } lastHour { completed } } }""",
    )
    assert found["jobs"]["results"] == found["events"]["results"] == []
    assert {row["tenant"] for name in ("quotas", "sources") for row in found[name]["results"]} == {"intruder"}
    assert found["dashboard"] == {"tenants": ["intruder"], "jobs": {"queued": 0}, "lastHour": {"completed": 0}}
