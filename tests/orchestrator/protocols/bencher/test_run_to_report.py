"""From `POST /v0/run` to the report: submission, claim, execution, output, metrics and billed minutes agree."""

import json
from typing import Any

import pytest

from orchestrator.audit.runner import run_audit
from orchestrator.protocols.bencher.channel.messages import parse_channel_frame
from orchestrator.protocols.bencher.channel.operations import finish
from orchestrator.protocols.bencher.channel.session import Reply
from tests.api_client import Caller
from tests.factories import RunnerFactory, api_token
from tests.orchestrator.protocols.bencher.channel.scene import held_by, mark_running
from tests.orchestrator.protocols.bencher.runs.world import accepted, job_body, new_person, new_project, new_spec
from tests.orchestrator.results.conftest import store  # noqa: F401 a fixture

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("store")]


def metric(value: float) -> str:
    return json.dumps({"fib": {"latency": {"value": value}}})


def executed(caller: Caller, spec: Any, *iterations: dict[str, Any], **settings: str) -> dict[str, Any]:
    """Submit a run, execute it as a runner reports that, and return its first report."""
    body = job_body(spec=spec.slug) | {"project": "adapter", "settings": settings}
    report = accepted(caller, body)
    job = held_by(RunnerFactory(specs=[spec]))
    assert mark_running(job) is Reply.ACK
    results = [{"exit_code": 0} | iteration for iteration in iterations]
    frame = parse_channel_frame(json.dumps({"event": "completed", "job": report["job"], "results": results}))
    assert finish(job, frame).reply is Reply.ACK
    return report


@pytest.fixture
def spec():
    return new_spec()


@pytest.fixture
def project():
    return new_project("adapter")


@pytest.fixture
def mia(project, settings):
    settings.PUBLIC_URL = "http://localhost:61016"
    return new_person("mia", project.organization).caller


def read(caller: Caller, path: str) -> Any:
    answer = caller.get(path)
    assert answer.status_code == 200, answer.content
    return answer.json()


def minutes(project: Any) -> list[int]:
    found = Caller(api_token(project.organization)).get("/v1/usage").json()["results"]
    return [row["minutes"] for row in found]


def test_a_run_becomes_a_report_with_metrics_and_minutes(mia, project, spec):
    own = {"\0bencher": json.dumps({"image": {"build-time": {"value": 3}}}), "/out.json": metric(5)}
    first = executed(mia, spec, {"stdout": metric(7)}, {"stdout": "ignored", "output": own}, adapter="json", fold="max")
    assert "results" not in first or first["results"] == []
    report = read(mia, f"/v0/projects/adapter/reports/{first['uuid']}")
    found = {
        (row["iteration"], row["benchmark"]["name"], measure["measure"]["slug"], measure["metric"]["value"])
        for row in report["results"][0]
        for measure in row["measures"]
    }
    assert found == {(0, "fib", "latency", 7.0), (0, "image", "build-time", 3.0)}
    assert report["testbed"]["spec"]["uuid"] == str(spec.uuid)
    job = read(mia, f"/v0/projects/adapter/jobs/{first['job']}")
    assert job["status"] == "processed"
    assert job["output"]["results"][1]["output"] == own
    assert minutes(project) == [1]
    assert [str(finding) for finding in run_audit(chains=True)] == []


def test_a_run_whose_result_is_unreadable_failed_and_is_billed(mia, project, spec):
    first = executed(mia, spec, {"stdout": "no benchmarks"}, adapter="rust_bench")
    report = read(mia, f"/v0/projects/adapter/reports/{first['uuid']}")
    assert report["results"] == []
    job = read(mia, f"/v0/projects/adapter/jobs/{first['job']}")
    assert job["status"] == "failed"
    assert job["output"]["results"][0]["stdout"] == "no benchmarks"
    assert minutes(project) == [1]
    assert [str(finding) for finding in run_audit(chains=True)] == []
