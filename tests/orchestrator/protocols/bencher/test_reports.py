"""Reports, testbeds and metrics of a project (`/v0/projects/{project}/…`)."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.utils import timezone

from orchestrator.core.cause import Cause
from orchestrator.protocols.bencher.reports import perf as views_perf
from orchestrator.protocols.bencher.reports import streaming, views, wire
from orchestrator.pubsub.log_hub import SourceUnavailable
from orchestrator.results import models, names
from orchestrator.results.outputs import encode_output
from orchestrator.results.processing import process, store_results
from orchestrator.results.reading import ReadingSettings, UnreadableResult, read_texts
from orchestrator.services import hardware_specs
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import OperatorEvent, Project
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    OrganizationFactory,
    ProjectFactory,
    personal_key,
    project_key,
)
from tests.orchestrator.protocols.bencher.runs.world import new_person
from tests.orchestrator.results.conftest import execution
from workers.models import HardwareSpec
from workers.registry.tokens import PROJECT_PREFIX

pytestmark = pytest.mark.django_db

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class BencherClient:
    """A client with a key, or without."""

    def __init__(self, key: str | None = None) -> None:
        self.http = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        raw = b"" if body is None else json.dumps(body).encode()
        return self.http.generic(method, path, raw, content_type="application/json", headers=self.headers)

    def get(self, path: str, status: int = 200) -> Any:
        response = self.call("GET", path)
        assert response.status_code == status, response.content
        return response


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="acme"), slug="web", visibility="public")


@pytest.fixture
def private():
    return ProjectFactory(organization=OrganizationFactory(slug="acme"), slug="secret")


@pytest.fixture
def anyone():
    return BencherClient()


@pytest.fixture
def member(project):
    return BencherClient(project_key(project))


def report(
    project: Project, *texts: str, started: datetime = START, branch: str = "main", testbed: str = "box", **columns: Any
):
    found = models.Report.objects.create(
        project=project, branch=names.get_or_create_branch(project, branch), adapter="json",
        testbed=names.get_or_create_testbed(project, testbed), start_time=started, end_time=started + timedelta(minutes=1),
        **columns,
    )  # fmt: skip
    store_results(found, read_texts(texts, ReadingSettings("json")))
    return found


def metrics(**values: float) -> str:
    return json.dumps({name: {"latency": {"value": value, "lower_value": value - 1}} for name, value in values.items()})


# --- one report -------------------------------------------------------------------------------------------------------


def test_a_report_has_results_by_iteration_and_benchmark(project, anyone):
    made = report(project, metrics(a=1, b=2), metrics(a=3), git_hash="c" * 40)
    found = anyone.get(f"/v0/projects/web/reports/{made.uuid}").json()
    assert found["uuid"] == str(made.uuid)
    assert (found["start_time"], found["end_time"]) == ("2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z")
    assert (found["adapter"], found["user"], found["alerts"]) == ("json", None, [])
    assert "job" not in found
    assert found["project"]["uuid"] == str(project.uuid)
    assert (found["project"]["slug"], found["project"]["visibility"]) == ("web", "public")
    assert (found["branch"]["name"], found["branch"]["head"]["version"]) == ("main", {"number": 0, "hash": "c" * 40})
    assert (found["testbed"]["name"], found["testbed"]["spec"]) == ("box", None)
    assert found["counts"] == {
        "results": [{"benchmarks": 2, "measures": 1}, {"benchmarks": 1, "measures": 1}],
        "alerts": {"total": 0, "active": 0},
    }
    shown = [
        [(row["iteration"], row["benchmark"]["name"], *map(value_of, row["measures"])) for row in iteration]
        for iteration in found["results"]
    ]
    assert shown == [
        [(0, "a", ("latency", 1.0, 0.0, None)), (0, "b", ("latency", 2.0, 1.0, None))],
        [(1, "a", ("latency", 3.0, 2.0, None))],
    ]


def value_of(measure: dict[str, Any]) -> tuple[str, float, float | None, float | None]:
    assert (measure["threshold"], measure["boundary"]) == (None, None)
    value = measure["metric"]
    return measure["measure"]["slug"], value["value"], value["lower_value"], value["upper_value"]


@pytest.mark.django_db(transaction=True)
def test_a_report_of_a_job_has_its_results_and_times_when_they_have_been_read(anyone):
    project = ProjectFactory(visibility="public")
    run = execution(project)
    path = f"/v0/projects/{project.uuid}/reports/{run.report.uuid}"
    before = anyone.get(path).json()
    assert (before["job"], before["results"], before["counts"]["results"]) == (str(uuid_of(run.job.job_ulid)), [], [])
    run.store(encode_output([{"stdout": metrics(a=1)}]))
    process(run.complete(seconds=60))
    after = anyone.get(path).json()
    assert [row["benchmark"]["name"] for row in after["results"][0]] == ["a"]
    times = [datetime.fromisoformat(after[name]) for name in ("start_time", "end_time")]
    assert (times[1] - times[0]).total_seconds() in {60, 61}  # whole seconds


def test_a_report_of_another_project_is_not_found(project, anyone):
    other = report(ProjectFactory(slug="other", visibility="public"), metrics(a=1))
    for uuid, status in ((other.uuid, 404), (uuid4(), 404), ("latest", 400)):
        assert anyone.get(f"/v0/projects/web/reports/{uuid}", status).json()["message"]


# --- lists ------------------------------------------------------------------------------------------------------------


def listed(client: BencherClient, query: str = "") -> list[str]:
    """The branches of the listed reports."""
    return [row["branch"]["name"] for row in client.get(f"/v0/projects/web/reports?{query}").json()]


def test_reports_are_listed_newest_first_with_counts_and_without_results(project, anyone):
    for day in range(3):
        report(project, metrics(a=1), branch=f"b{day}", started=START + timedelta(days=day))
    response = anyone.get("/v0/projects/web/reports")
    assert response["X-Total-Count"] == "3"
    assert [row["branch"]["name"] for row in response.json()] == ["b2", "b1", "b0"]
    assert all("results" not in row and "alerts" not in row for row in response.json())
    assert [row["counts"]["results"] for row in response.json()] == [[{"benchmarks": 1, "measures": 1}]] * 3
    assert listed(anyone, "direction=asc&per_page=2&page=2") == ["b2"]
    expanded = anyone.get("/v0/projects/web/reports?expand=true").json()
    assert [len(row["results"]) for row in expanded] == [1, 1, 1]


@pytest.mark.parametrize(
    ("query", "branches"),
    [
        ("branch=b1", ["b1"]),
        ("branch=nothing", []),
        ("testbed=box2", ["b2"]),
        ("archived=true", ["b0"]),
        (f"start_time={int((START + timedelta(days=2)).timestamp() * 1000)}", ["b2"]),
        (f"end_time={int((START + timedelta(days=1, minutes=1)).timestamp() * 1000)}", ["b1"]),
    ],
)
def test_a_filter_narrows_the_list(project, anyone, query, branches):
    for day in range(3):
        report(project, branch=f"b{day}", testbed=f"box{day}", started=START + timedelta(days=day))
    models.Branch.objects.filter(name="b0").update(archived_at=timezone.now())
    assert listed(anyone, query) == branches
    assert listed(anyone) == ["b2", "b1"]


@pytest.mark.parametrize(
    "query", ["start_time=x", "start_time=-1", "end_time=9999999999999999", "expand=1", "sort=name"]
)
def test_an_invalid_parameter_is_named(project, anyone, query):
    assert query.partition("=")[0] in anyone.get(f"/v0/projects/web/reports?{query}", 400).json()["message"]


def test_a_list_of_reports_needs_a_bounded_number_of_queries(project, anyone, django_assert_max_num_queries):
    for number in range(20):
        report(project, metrics(a=1, b=2), branch=f"b{number}", testbed=f"box{number}")
    with django_assert_max_num_queries(5):
        anyone.get("/v0/projects/web/reports?per_page=20")


def test_an_expanded_list_is_bounded(project, anyone, monkeypatch):
    monkeypatch.setattr(views, "MAX_EXPANDED_METRICS", 3)
    report(project, metrics(a=1, b=2))
    report(project, metrics(a=1, b=2))
    assert "per_page" in anyone.get("/v0/projects/web/reports?expand=true", 400).json()["message"]
    assert anyone.get("/v0/projects/web/reports?expand=true&per_page=1").json()


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_a_metric_has_its_report_and_names(project, anyone):
    made = report(project, metrics(a=1))
    metric = models.Metric.objects.get()
    found = anyone.get(f"/v0/projects/web/metrics/{metric.uuid}").json()
    assert (found["uuid"], found["report"], found["iteration"]) == (str(metric.uuid), str(made.uuid), 0)
    assert (found["benchmark"]["name"], found["measure"]["units"]) == ("a", "nanoseconds (ns)")
    assert found["metric"]["value"] == 1.0
    assert (found["branch"]["name"], found["testbed"]["name"]) == ("main", "box")
    anyone.get(f"/v0/projects/web/metrics/{uuid4()}", 404)
    anyone.get("/v0/projects/web/metrics/a", 400)


# --- the history ------------------------------------------------------------------------------------------------------


def perf(client: BencherClient, status: int = 200, **query: object) -> Any:
    """The series of the only branch, testbed, benchmark and measure; `query` changes the parameters."""
    models_of = {"branches": models.Branch, "testbeds": models.Testbed, "benchmarks": models.Benchmark}
    models_of["measures"] = models.Measure
    values = {
        name: ",".join(str(row.uuid) for row in model.objects.order_by("pk")) for name, model in models_of.items()
    }
    text = "&".join(f"{name}={value}" for name, value in (values | query).items() if value is not None)
    return client.get(f"/v0/projects/web/perf?{text}", status).json()


def values_of(found: dict[str, Any]) -> dict[tuple[str, str, str], list[float]]:
    return {
        (row["branch"]["name"], row["testbed"]["name"], row["benchmark"]["name"]): [
            point["metric"]["value"] for point in row["metrics"]
        ]
        for row in found["results"]
    }


def test_the_history_has_a_series_for_each_combination_with_metrics(project, anyone):
    report(project, metrics(a=2), started=START + timedelta(days=1), git_hash="c" * 40)
    report(project, metrics(a=1, b=5), metrics(a=3))
    report(project, metrics(a=9), branch="other")
    found = perf(anyone)
    assert values_of(found) == {
        ("main", "box", "a"): [1.0, 3.0, 2.0], ("main", "box", "b"): [5.0], ("other", "box", "a"): [9.0],
    }  # fmt: skip
    points = found["results"][0]["metrics"]
    assert [point["iteration"] for point in points] == [0, 1, 0]
    assert [point["version"]["hash"] for point in points] == [None, None, "c" * 40]
    day = int((START + timedelta(days=1)).timestamp() * 1000)
    assert values_of(perf(anyone, start_time=day)) == {("main", "box", "a"): [2.0]}
    assert values_of(perf(anyone, end_time=day))["main", "box", "a"] == [1.0, 3.0]


def test_series_that_begin_at_once_are_in_the_order_of_their_metrics(project, anyone):
    names_of_series = [f"bench-{number:02}" for number in range(40)]
    report(project, metrics(**dict.fromkeys(names_of_series, 1)))
    for name in names_of_series[::3]:
        models.Metric.objects.filter(benchmark__name=name).update(
            value=2
        )  # PostgreSQL stores the row behind the others
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off")
    assert [row["benchmark"]["name"] for row in perf(anyone)["results"]] == names_of_series


def test_the_history_of_a_hardware_spec(project, anyone):
    former, current = HardwareSpecFactory(), HardwareSpecFactory()
    for value, spec in ((1, former), (2, current)):
        report(project, metrics(a=value), spec=spec)
    models.Testbed.objects.update(spec=current)
    found = perf(anyone)
    assert values_of(found) == {("main", "box", "a"): [1.0, 2.0]}
    assert found["results"][0]["testbed"]["spec"] is None, "the metrics are those of both"
    found = perf(anyone, specs=former.uuid)
    assert values_of(found) == {("main", "box", "a"): [1.0]}
    assert found["results"][0]["testbed"]["spec"]["uuid"] == str(former.uuid)


def test_a_head_is_that_of_its_branch(project, anyone):
    report(project, metrics(a=1))
    assert values_of(perf(anyone, heads=models.Branch.objects.get().uuid)) != {}
    assert perf(anyone, heads=uuid4())["results"] == []


@pytest.mark.parametrize(
    "query",
    [{"branches": None}, {"measures": ""}, {"benchmarks": "a"}, {"specs": "x"}, {"specs": f"{uuid4()},{uuid4()}"},
     {"testbeds": f"{uuid4()},"}, {"start_time": "x"}],
)  # fmt: skip
def test_a_wrong_parameter_of_the_history_is_named(project, anyone, query):
    report(project, metrics(a=1))
    assert next(iter(query)) in perf(anyone, 400, **query)["message"]


def test_the_history_is_bounded(project, anyone, monkeypatch):
    report(project, metrics(a=1), metrics(a=2))
    assert "255 combinations" in perf(anyone, 400, measures=",".join(str(uuid4()) for _ in range(256)))["message"]
    monkeypatch.setattr(views_perf, "MAX_POINTS", 1)
    assert "start_time" in perf(anyone, 400)["message"]


def test_the_history_of_another_project_is_not_there(project, private, anyone):
    report(private, metrics(a=1))
    assert perf(anyone)["results"] == []
    anyone.get("/v0/projects/secret/perf", 404)


# --- who may read and change ------------------------------------------------------------------------------------------

UNKNOWN = "00000000-0000-4000-8000-000000000099"  # the same in each process that collects the tests
PATHS = ("reports", "testbeds", f"reports/{UNKNOWN}", f"metrics/{UNKNOWN}", "testbeds/box", "branches", "measures/x")


@pytest.mark.parametrize("path", PATHS)
def test_a_private_project_does_not_exist_for_others(private, project, anyone, member, path):
    for client in (anyone, member):
        assert client.get(f"/v0/projects/secret/{path}", 404).json()["message"].startswith("There is no project secret")
    nothing = anyone.get(f"/v0/projects/nothing/{path}", 404).json()["message"]
    assert nothing == anyone.get(f"/v0/projects/secret/{path}", 404).json()["message"].replace("secret", "nothing")


def test_the_key_of_a_private_project_reads_it(private):
    report(private, metrics(a=1))
    assert len(BencherClient(project_key(private)).get("/v0/projects/secret/reports").json()) == 1


def test_the_key_of_another_project_is_refused_on_a_public_project(project, private):
    client = BencherClient(project_key(private))
    for path in PATHS:
        client.get(f"/v0/projects/web/{path}", 403)


def test_an_invalid_key_is_refused_also_on_a_public_project(project):
    BencherClient(PROJECT_PREFIX + "x").get("/v0/projects/web/reports", 401)


def test_only_members_change_testbeds(project, private, anyone):
    names.get_or_create_testbed(project, "box")
    for client, status in ((anyone, 401), (BencherClient(project_key(private)), 403)):
        assert client.call("POST", "/v0/projects/web/testbeds", {"name": "new"}).status_code == status
        assert client.call("PATCH", "/v0/projects/web/testbeds/box", {"name": "new"}).status_code == status
    assert list(models.Testbed.objects.values_list("name", flat=True)) == ["box"]


@pytest.mark.parametrize(("permission", "may"), [(None, False), ("change_worker", False), ("operate_job", True)])
def test_staff_reads_all_projects_and_changes_them_by_its_permission(private, permission, may):
    staff = User.objects.create(username="stan", is_staff=True)
    if permission:
        staff.user_permissions.add(Permission.objects.get(codename=permission))
    names.get_or_create_testbed(private, "box")
    client = BencherClient(personal_key(staff))
    client.get("/v0/projects/secret/reports")
    statuses = [
        client.call(method, f"/v0/projects/secret/testbeds{path}", {"name": name}).status_code
        for method, path, name in [("POST", "", "new"), ("PATCH", "/box", "renamed")]
    ]
    assert statuses == ([201, 200] if may else [403, 403])
    found = set(models.Testbed.objects.values_list("name", flat=True))
    assert found == ({"new", "renamed"} if may else {"box"})


# --- projects, and lists of what reports name ---------------------------------------------------------------------------


def test_a_missing_endpoint_is_named(anyone):
    for path in ("/v0/projects/web/nothing", "/v0/nothing"):
        assert anyone.get(path, 404).json()["message"] == f"This server has no endpoint {path}."


def test_branches_benchmarks_and_measures_are_listed_and_read(project, anyone):
    report(project, metrics(a=1, b=2))
    models.Branch.objects.create(
        project=project, name="old", slug="old", archived_at=timezone.now(), created_at=START, modified_at=START
    )
    for resource, names_, member in (
        ("branches", ["main"], "head"), ("benchmarks", ["a", "b"], "slug"), ("measures", ["Latency"], "units"),
    ):  # fmt: skip
        found = anyone.get(f"/v0/projects/web/{resource}")
        rows = found.json()
        assert ([row["name"] for row in rows], found["X-Total-Count"]) == (names_, str(len(names_)))
        for key in (rows[0]["uuid"], rows[0]["slug"]):
            one = anyone.get(f"/v0/projects/web/{resource}/{key}").json()
            assert one == rows[0]
            assert one[member]
        anyone.get(f"/v0/projects/web/{resource}/nothing", 404)
    assert [row["name"] for row in anyone.get("/v0/projects/web/branches?archived=true").json()] == ["main", "old"]
    assert [row["name"] for row in anyone.get("/v0/projects/web/benchmarks?name=b").json()] == ["b"]


def test_projects_are_listed_and_read(project, anyone):
    member = BencherClient(personal_key(new_person("mia", project.organization)))
    private = ProjectFactory(organization=project.organization, slug="secret", visibility="private")
    others = ProjectFactory(organization=OrganizationFactory(slug="neighbour"), slug="theirs", visibility="private")
    assert [row["slug"] for row in anyone.get("/v0/projects").json()] == ["web"]
    assert [row["slug"] for row in member.get("/v0/projects").json()] == ["secret", "web"]
    assert [row["slug"] for row in member.get("/v0/projects?search=SEC").json()] == ["secret"]
    assert BencherClient(project_key(others)).get("/v0/projects").json()[0]["slug"] == "theirs"
    slug = project.organization.slug
    assert [row["slug"] for row in member.get(f"/v0/organizations/{slug}/projects").json()] == ["secret", "web"]
    assert anyone.get("/v0/organizations/neighbour/projects", 404).json()["message"] == (
        anyone.get("/v0/organizations/nowhere/projects", 404).json()["message"].replace("nowhere", "neighbour")
    )
    for key in ("web", str(project.uuid)):
        assert anyone.get(f"/v0/projects/{key}").json()["uuid"] == str(project.uuid)
    anyone.get("/v0/projects/secret", 404)
    assert member.get("/v0/projects/secret").json()["uuid"] == str(private.uuid)


def test_reports_and_testbeds_are_deleted_by_members(project, anyone, member):
    found = report(project, metrics(a=1))
    paths = [f"/v0/projects/web/reports/{found.uuid}", "/v0/projects/web/testbeds/box"]
    for path in paths:
        assert anyone.call("DELETE", path).status_code == 401
    taken = member.call("DELETE", paths[1])
    assert (taken.status_code, "report" in taken.json()["message"]) == (409, True)
    for path in paths:
        deleted = member.call("DELETE", path)
        assert (deleted.status_code, deleted.content, deleted["X-Total-Count"]) == (204, b"", "0")
        assert member.call("DELETE", path).status_code == 404
    assert (models.Report.objects.count(), models.Metric.objects.count(), models.Testbed.objects.count()) == (0, 0, 0)
    names_ = list(OperatorEvent.objects.order_by("id").values_list("action", flat=True))
    assert names_ == ["report.deleted", "testbed.deleted"]


# --- testbeds ---------------------------------------------------------------------------------------------------------


def test_testbeds_are_listed_by_name(project, anyone):
    for name in ("y", "x", "z"):  # no hexadecimal digits: the search finds parts of UUIDs, too
        names.get_or_create_testbed(project, name)
    models.Testbed.objects.filter(name="z").update(archived_at=timezone.now())
    assert [row["name"] for row in anyone.get("/v0/projects/web/testbeds").json()] == ["x", "y"]
    assert [row["name"] for row in anyone.get("/v0/projects/web/testbeds?archived=true&search=Z").json()] == ["z"]


def test_a_testbed_has_its_spec_and_can_have_another_in_the_response(project, anyone):
    current, former = HardwareSpecFactory(), HardwareSpecFactory(name="old", slug="old", archived_at=timezone.now())
    testbed = names.get_or_create_testbed(project, "box")
    models.Testbed.objects.update(spec=current)
    for key in ("box", str(testbed.uuid)):
        assert anyone.get(f"/v0/projects/web/testbeds/{key}").json()["spec"]["uuid"] == str(current.uuid)
    found = anyone.get(f"/v0/projects/web/testbeds/box?spec={former.uuid}").json()
    assert found["spec"]["uuid"] == str(former.uuid)
    anyone.get(f"/v0/projects/web/testbeds/box?spec={uuid4()}", 404)
    anyone.get("/v0/projects/web/testbeds/box?spec=old", 400)
    anyone.get("/v0/projects/web/testbeds/nothing", 404)


def test_a_testbed_is_created_with_a_spec(project, member):
    spec = HardwareSpecFactory()
    response = member.call("POST", "/v0/projects/web/testbeds", {"name": "Box 1", "spec": spec.slug, "unknown": 1})
    assert response.status_code == 201, response.content
    found = response.json()
    assert (found["name"], found["slug"], found["spec"]["uuid"]) == ("Box 1", "box-1", str(spec.uuid))
    other = member.call("POST", "/v0/projects/web/testbeds", {"name": "Box-1"}).json()
    assert other["slug"].startswith("box-1-")
    assert member.call("POST", "/v0/projects/web/testbeds", {"name": "Box 1"}).status_code == 409
    assert member.call("POST", "/v0/projects/web/testbeds", {"name": "x", "spec": "nothing"}).status_code == 404
    assert models.Testbed.objects.count() == 2


def test_a_testbed_is_changed(project, member):
    spec = HardwareSpecFactory()
    names.get_or_create_testbed(project, "box")
    names.get_or_create_testbed(project, "other")

    def change(body: dict[str, Any], key: str = "box", status: int = 200) -> dict[str, Any]:
        response = member.call("PATCH", f"/v0/projects/web/testbeds/{key}", body)
        assert response.status_code == status, response.content
        return response.json()

    assert change({"spec": str(spec.uuid)})["spec"]["slug"] == spec.slug
    assert change({"name": "Box", "archived": None})["spec"]["slug"] == spec.slug
    assert change({"spec": None})["spec"] is None
    assert change({"archived": True})["archived"] is not None
    assert change({"archived": False})["archived"] is None
    assert change({"slug": "big-box"})["slug"] == "big-box"
    assert change({"name": "other"}, "big-box", 409)["message"]
    assert change({"slug": "Not a slug"}, "big-box", 400)["message"]
    assert models.Testbed.objects.get(slug="big-box").name == "Box"


@pytest.mark.django_db(transaction=True)
def test_a_change_does_not_attach_a_spec_that_was_archived_meanwhile(project, member, monkeypatch):
    """The row is read again under its lock."""
    spec = HardwareSpecFactory()
    testbed = names.get_or_create_testbed(project, "box")
    models.Testbed.objects.update(spec=spec)
    original = views._find_testbed

    def find(*arguments, **options):
        found = original(*arguments, **options)
        if not connection.in_atomic_block:
            hardware_specs.change_spec(spec_uuid=spec.uuid, archived=True, cause=Cause(OPERATOR))
        return found

    monkeypatch.setattr(views, "_find_testbed", find)
    assert member.call("PATCH", "/v0/projects/web/testbeds/box", {"name": "box2"}).status_code == 200
    testbed.refresh_from_db()
    assert (testbed.name, testbed.spec) == ("box2", None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("method", "path"), [("POST", "testbeds"), ("PATCH", "testbeds/box")])
def test_a_spec_is_not_archived_while_a_testbed_gets_it(project, member, monkeypatch, method, path):
    spec = HardwareSpecFactory()
    names.get_or_create_testbed(project, "box")
    original, is_locked = views._save, []

    def lock() -> bool:
        try:
            with transaction.atomic():
                HardwareSpec.objects.select_for_update(nowait=True).get(pk=spec.pk)
        except OperationalError:
            return True
        else:
            return False
        finally:
            connection.close()

    def save(*arguments, **options):
        with ThreadPoolExecutor(1) as pool:
            is_locked.append(pool.submit(lock).result(60))
        original(*arguments, **options)

    monkeypatch.setattr(views, "_save", save)
    response = member.call(method, f"/v0/projects/web/{path}", {"name": "new", "spec": spec.slug})
    assert response.status_code in (200, 201), response.content
    assert is_locked == [True]
    assert models.Testbed.objects.get(name="new").spec == spec


def test_a_benchmark_of_many_iterations_is_serialized_once(project, django_assert_max_num_queries):
    """Else a report of 50,000 metrics takes several hundred MiB of memory."""
    found = report(project, *[metrics(a=number, b=2) for number in range(5)])
    with django_assert_max_num_queries(3):
        rows = wire.metrics_of(found)
    iterations = wire.report_document(found, rows, ())["results"]
    assert [result["benchmark"]["name"] for results in iterations for result in results] == ["a", "b"] * 5
    assert len({id(result["benchmark"]) for results in iterations for result in results}) == 2
    measured = [measure for results in iterations for result in results for measure in result["measures"]]
    assert len({id(measure["measure"]) for measure in measured}) == 1
    assert [measure["metric"]["value"] for measure in measured[::2]] == [0, 1, 2, 3, 4]


# --- large reports ----------------------------------------------------------------------------------------------------


@pytest.fixture
def large(project) -> models.Report:
    """A report of several pages: iterations, benchmarks and measures end within pages and at their ends."""
    names_of = [f"b{number}" for number in range(7)]
    values = {name: {"latency": {"value": 1.5}, "throughput": {"value": 2, "upper_value": 3}} for name in names_of}
    return report(project, *[json.dumps(values)] * 3, metrics(z=1))


@pytest.mark.parametrize("page", [1, 2, 5, 14, 42, 1000])
def test_a_large_report_is_sent_page_by_page_with_the_same_content(project, anyone, large, monkeypatch, page):
    path = f"/v0/projects/web/reports/{large.uuid}"
    whole = anyone.get(path)
    monkeypatch.setattr(streaming, "PAGE_METRICS", page)
    paged = anyone.get(path)
    assert paged.streaming == (page < 43)
    body = b"".join(paged.streaming_content) if paged.streaming else paged.content
    assert json.loads(body) == whole.json()
    for name in ("Content-Type", "X-Total-Count", "Access-Control-Allow-Origin"):
        assert paged[name] == whole[name]


def test_an_expanded_list_of_large_reports_is_sent_page_by_page(project, anyone, large, monkeypatch):
    report(project, metrics(a=1))
    report(project)
    path = "/v0/projects/web/reports?expand=true"
    whole = anyone.get(path)
    monkeypatch.setattr(streaming, "PAGE_METRICS", 10)
    paged = anyone.get(path)
    assert json.loads(b"".join(paged.streaming_content)) == whole.json()
    assert paged["X-Total-Count"] == whole["X-Total-Count"] == "3"


def test_a_large_report_needs_the_memory_of_a_page(project, large, monkeypatch, django_assert_num_queries):
    """One query for the numbers, one for the keys, and one for each page when the client reads it."""
    monkeypatch.setattr(streaming, "PAGE_METRICS", 10)
    found = models.Report.objects.select_related(
        "project__organization__plan", "branch", "testbed", "spec", "result"
    ).get()
    with django_assert_num_queries(2 + 5):
        parts = list(streaming._report_parts(found))
    assert len(parts) == 1 + 5 + 1
    assert all(parts), "an empty part would end the response"


@pytest.mark.django_db(transaction=True)
def test_a_large_report_is_read_in_threads_and_a_lost_database_does_not_look_like_its_end(project, large, monkeypatch):
    monkeypatch.setattr(streaming, "PAGE_METRICS", 10)
    found = models.Report.objects.select_related(
        "project__organization__plan", "branch", "testbed", "spec", "result"
    ).get()

    async def collect(parts) -> bytes:
        return b"".join([part async for part in streaming._from_thread(parts)])

    expected = b"".join(streaming._report_parts(found))
    assert asyncio.run(collect(streaming._report_parts(found))) == expected

    def broken():
        yield b"{"
        raise OperationalError("gone")

    with pytest.raises(SourceUnavailable):
        asyncio.run(collect(broken()))


# --- the number of names of a project ---------------------------------------------------------------------------------


def test_a_project_has_a_limit_of_benchmarks(project, settings):
    settings.RESOURCES_PER_PROJECT = 3
    report(project, metrics(a=1, b=2))
    report(project, metrics(a=1, c=2), "{}")
    with pytest.raises(UnreadableResult, match="3 benchmarks, and this request would add 1"):
        report(project, metrics(a=1, d=2))
    report(project, metrics(a=1, b=2, c=3))
    settings.RESOURCES_PER_PROJECT = 0
    report(project, metrics(d=2))


def test_testbeds_and_branches_have_the_limit_too(project, member, settings):
    settings.RESOURCES_PER_PROJECT = 1
    report(project, metrics(a=1))
    answer = member.call("POST", "/v0/projects/web/testbeds", {"name": "second"})
    assert answer.status_code == 400
    assert "RESOURCES_PER_PROJECT is 1" in answer.json()["message"]
    with pytest.raises(names.ResourceLimitReached):
        names.get_or_create_branch(project, "second")
