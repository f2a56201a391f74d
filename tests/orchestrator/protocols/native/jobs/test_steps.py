"""`GET /v1/jobs/{id}/steps`, `…/annotations` and `…/logs?step=N`: the steps of a job with their logs."""

import pytest
from django.utils import timezone

from orchestrator.step_logs import job_log_writes
from orchestrator.step_logs.finalizing import finalize_step_log
from runtime_jobs.models import JobStep
from tests.api_client import refused
from tests.factories import WorkerFactory, claimed, submitted_steps
from tests.orchestrator.step_logs.logs import append, end

pytestmark = pytest.mark.django_db
JOBS = "/v1/jobs"


@pytest.fixture(autouse=True)
def _folder(settings, tmp_path):
    options = {"OPTIONS": {"location": str(tmp_path)}}
    settings.STORAGES = settings.STORAGES | {"artifacts": settings.STORAGES["artifacts"] | options}


@pytest.fixture
def steps(organization):
    """The three steps of a running job."""
    submitted_steps(organization.projects.get())
    job = claimed(WorkerFactory(), job_types=("steps",)).job
    rows = [("checkout", "", "actions/checkout@v4"), ("", "echo one\necho two", ""), ("Test", "make test", "")]
    return [
        JobStep.objects.create(job=job, index=index, name=name, run=run, uses=uses, step_id="t" if index == 2 else "")
        for index, (name, run, uses) in enumerate(rows)
    ]


def path_of(steps, name):
    return f"{JOBS}/{steps[0].job_id}/{name}"


def text(response):
    assert response.status_code == 200, response.content
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    return b"".join(response.streaming_content)


def test_the_steps_of_a_job_with_their_status_and_the_size_of_their_log(alice, steps):
    append(steps[0], 0, b"checked out\n")
    end(steps[0], timezone.now())
    append(steps[1], 0, b"::error file=a.py,line=3::wrong\n")
    response = alice.get(path_of(steps, "steps"))
    assert response.status_code == 200
    first, second, third = response.json()["results"]
    assert first.pop("started_at") == first.pop("completed_at") is not None
    assert first == {
        "step": 0, "id": steps[0].pk, "step_id": None, "name": "checkout", "run": None, "uses": "actions/checkout@v4",
        "status": "completed", "conclusion": "success", "log_bytes": 12, "log_is_truncated": False,
        "annotation_count": 0,
    }  # fmt: skip
    assert (second["name"], second["run"], second["log_bytes"]) == ("echo one", "echo one\necho two", 32)
    assert (second["annotation_count"], second["status"], second["conclusion"]) == (1, "queued", None)
    assert (third["step_id"], third["name"], third["log_bytes"], third["started_at"]) == ("t", "Test", 0, None)


def test_a_job_of_a_type_without_steps_has_those_of_its_log(alice, organization):
    submitted_steps(organization.projects.get())
    lease = claimed(WorkerFactory(), job_types=("steps",)).lease
    job_log_writes.append_log(lease_ulid=lease.lease_ulid, worker=lease.worker, seq=0, chunk=b"text", step=2)
    (step,) = alice.get(f"{JOBS}/{lease.job_id}/steps").json()["results"]
    assert (step["step"], step["id"], step["name"], step["status"], step["log_bytes"]) == (2, None, "Step 2", None, 4)
    assert text(alice.get(f"{JOBS}/{lease.job_id}/logs?step=2")) == b"text"


def test_the_log_of_one_step_wherever_its_bytes_are(alice, steps):
    append(steps[0], 0, b"of the first\n")
    append(steps[1], 0, b"of the second\n")
    assert text(alice.get(path_of(steps, "logs?step=1"))) == b"of the second\n"
    end(steps[1], timezone.now())
    assert finalize_step_log(steps[1].pk)
    append(steps[1], 1, b"late\n")
    assert text(alice.get(path_of(steps, "logs?step=1"))) == b"of the second\nlate\n"
    assert text(alice.get(path_of(steps, "logs?step=2"))) == b""
    refused(lambda: alice.get(path_of(steps, "logs?step=3")), 404, "not_found")


@pytest.mark.parametrize("query", ["step=-1", "step=one", "step=", "step=1234567890", "step=1&follow=1", "step=²"])
def test_a_wrong_step_is_refused(alice, steps, query):
    refused(lambda: alice.get(path_of(steps, f"logs?{query}")), 400, "invalid_query")


def test_annotations_are_listed_in_the_order_in_which_they_were_printed(alice, steps, monkeypatch):
    monkeypatch.setattr("orchestrator.protocols.native.jobs.views.ANNOTATIONS_PER_PAGE", 2)
    append(steps[1], 0, b"::error file=a.py,line=3,col=4,title=Sum::the value of token is secret\n", (b"secret",))
    append(steps[0], 0, b"::notice::first step\n::warning file=b.py,endLine=9::third\n")
    first = alice.get(path_of(steps, "annotations")).json()
    assert first["next_after"] == first["results"][1]["id"]
    assert first["results"][0] == {
        "id": first["results"][0]["id"], "step": 1, "level": "error", "title": "Sum", "path": "a.py",
        "message": "the value of token is ***", "start_line": 3, "end_line": None, "start_column": 4,
        "end_column": None,
    }  # fmt: skip
    assert (first["results"][1]["level"], first["results"][1]["title"]) == ("notice", None)
    second = alice.get(path_of(steps, f"annotations?after={first['next_after']}")).json()
    assert [found["message"] for found in second["results"]] == ["third"]
    assert second["next_after"] is None
    refused(lambda: alice.get(path_of(steps, "annotations?after=x")), 400, "invalid_query")
