"""The steps of a workflow job over the native API: their evaluation, their moves, and the secrets that they see."""

import base64

import pytest

from orchestrator.core.cause import Cause
from orchestrator.secrets.operations import set_secret
from runtime_jobs.models import JobStep, LogChunk
from tests.api_client import Caller
from tests.factories import ALICE, WorkerFactory
from tests.workflow_runs import LABEL, job_of, repository, started

pytestmark = pytest.mark.django_db
FILE = """
on: push
jobs:
  build:
    runs-on: linux
    steps:
      - {run: 'echo "${{ secrets.TOKEN }}" "${{ env.A }}"', shell: sh, env: {A: '${{ secrets.TOKEN }}', B: '${{ env.LEFT }}'}}
      - {run: x, if: failure()}
"""
SECRET = "hunter2-correct-horse"
INPUTS = ("SHITHUB_INPUT_0", "SHITHUB_INPUT_1")


def put(value):
    set_secret(
        organization=repository().project.organization, repository=None, name="TOKEN", value=value, cause=Cause(ALICE)
    )


@pytest.fixture
def leased(db):
    put(SECRET)
    run = started(FILE)
    worker = WorkerFactory(labels=[LABEL])
    native = Caller(worker.token)
    claim = {"worker_id": worker.worker_id, "capabilities": {"namespaces": True}, "job_types": ["actions"]}
    answer = native.post("/v1/runtime/leases", claim)
    assert answer.status_code == 201, answer.content
    lease = answer.json()
    job = job_of(run, "build")
    assert lease["job"]["job_id"] == job.job_ulid
    assert SECRET not in answer.content.decode()
    return job, lambda call, body=None: native.post(f"/v1/runtime/leases/{lease['lease_id']}/{call}", body or {})


def begin(call, index=0, **state):
    return call(f"steps/{index}/begin", {"has_failed": False} | state)


def test_steps_see_the_secrets_of_the_start_and_the_log_masks_them(leased):
    job, call = leased
    assert call("steps/start").json()["step_count"] == 2
    put("another-secret-value")
    call("steps/start")
    order = begin(call, env={"LEFT": "x"}).json()
    assert order == begin(call, env={"LEFT": "x"}).json()
    assert (order["run"], order["shell"]) == ('echo "${SHITHUB_INPUT_0}" "${SHITHUB_INPUT_1}"', "sh")
    found = {name: order["environment"][name] for name in ("A", "B", "GITHUB_JOB", *INPUTS)}
    assert found == {"A": SECRET, "B": "x", "GITHUB_JOB": "build"} | dict.fromkeys(INPUTS, SECRET)
    chunk = {"step": 0, "seq": 0, "chunk": base64.b64encode(f"it is {SECRET}\n".encode()).decode()}
    assert call("logs", chunk).json() == {"next_seq": 1, "truncated": False}
    assert call("steps/0/end", {"conclusion": "success"}).status_code == 204
    assert b"".join(bytes(row.chunk) for row in LogChunk.objects.filter(job=job)) == b"it is ***\n"


def test_each_move_of_a_step_counts_once(leased):
    job, call = leased
    assert not begin(call).json()["is_skipped"]
    for _ in range(2):
        assert call("steps/0/end", {"conclusion": "failure"}).status_code == 204
    assert call("steps/0/end", {"conclusion": "success"}).status_code == 409
    assert begin(call, 1).json()["is_skipped"]
    assert [row.conclusion for row in JobStep.objects.filter(job=job).order_by("index")] == ["failure", "skipped"]
    for refused in (begin(call, 2), call("steps/2/end", {"conclusion": "success"})):
        assert (refused.status_code, refused.json()["errors"]) == (400, {"index": ["The job has no such step."]})
    assert call("logs", {"step": 2, "seq": 0, "chunk": ""}).status_code == 400


def test_only_the_holder_of_a_lease_begins_a_step(leased):
    _, call = leased
    other = Caller(WorkerFactory().token)
    lease = call("steps/start").wsgi_request.path.split("/")[4]
    assert (
        other.post(f"/v1/runtime/leases/{lease}/steps/0/begin", {"has_failed": False}).json()["code"] == "stale_lease"
    )
