"""Jobs of type `oci` over the native API: what a lease contains, and how the output becomes metrics."""

import base64
import json
from uuid import UUID

import pytest

from leases.models import Lease
from orchestrator.images.tokens import verify_pull_token
from orchestrator.protocols.native.leases.outputs import with_read_results
from orchestrator.results.models import Metric
from orchestrator.results.outputs import read_output
from orchestrator.services.batch_calls import WorkerMessage
from orchestrator.services.job_end import CompleteMessage
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from runtime_jobs.specs import config_of
from runtime_jobs.states import JobState
from tests.api_client import Caller, refused
from tests.factories import RunnerFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.protocols.bencher.runs.world import (
    BMF,
    DIGEST,
    job_body,
    job_of,
    new_person,
    new_project,
    new_spec,
)

pytestmark = pytest.mark.django_db
CLAIM = {"capabilities": {"namespaces": True}, "job_types": ["runtime", "oci"]}


@pytest.fixture
def spec(db):
    return new_spec("Net", cpu=2, memory=1 << 28, disk=1 << 29, network=True)


@pytest.fixture
def project(db):
    project = new_project("adapter")
    project.organization.egress = ["example.com"]
    project.organization.save()
    return project


@pytest.fixture
def mia(project):
    return new_person("mia", project.organization).caller


@pytest.fixture
def runner(spec):
    return RunnerFactory(specs=[spec])


@pytest.fixture
def native(runner):
    return Caller(runner.token)


def submit(mia, **job):
    return job_of(mia, job_body(f"adapter@{DIGEST}", spec="net", **job))


def claim(native, runner):
    answer = native.post("/v1/runtime/leases", CLAIM | {"worker_id": runner.worker_id})
    assert answer.status_code == 201, answer.content
    lease = answer.json()
    return lease["job"], lambda call, body: native.post(f"/v1/runtime/leases/{lease['lease_id']}/{call}", body)


def encoded(document):
    return {"output": base64.b64encode(json.dumps(document).encode()).decode()}


def test_a_lease_has_the_machine_the_network_and_a_token_for_the_image(mia, native, runner, project):
    job = submit(mia, iter=3)
    leased, _ = claim(native, runner)
    assert (leased["job_id"], leased["source"]) == (job.job_ulid, None)
    oci = leased["oci"]
    assert oci["machine"] == {"cpu": 2, "memory": 1 << 28, "disk": 1 << 29, "network": True}
    assert (oci["egress"], oci["config"]["iter"], oci["config"]["digest"]) == (["example.com"], 3, DIGEST)
    grant = verify_pull_token(oci["pull_token"], repository=str(project.uuid))
    assert (grant.runner, grant.actions) == (uuid_of(runner.worker_id), ("pull",))


def test_without_network_there_is_no_egress(mia, native, runner, spec):
    type(spec).objects.update(network=False)
    submit(mia)
    assert claim(native, runner)[0]["oci"]["egress"] == []


def test_the_output_becomes_metrics_with_the_message_that_names_it(mia, native, runner):
    job = submit(mia)
    _, send = claim(native, runner)
    send("report", {"phase": "executing"})
    iteration = {"exit_code": 0, "stdout": BMF, "output": {"\0bencher": BMF}}
    name = send("output", encoded({"results": [iteration]})).json()["output"]
    done = {"result": {"status": "succeeded", "exit_code": 0, "output": name}}
    for _ in range(2):
        assert send("complete", done).json()["status"] == "succeeded"
    assert send("output", encoded({"results": []})).json()["code"] == "stale_lease"
    job.refresh_from_db()
    assert (job.state, job.result["output"]) == (JobState.SUCCEEDED, name)
    assert list(Metric.objects.values_list("value", flat=True)) == [12.5]


def test_an_output_that_is_sent_again_replaces_the_first_one(mia, native, runner):
    """A client repeats a request whose response was lost. Any number of outputs of one lease take the place of one."""
    job = submit(mia)
    _, send = claim(native, runner)
    names = {send("output", encoded({"results": [{"exit_code": code}]})).json()["output"] for code in (1, 2, 0)}
    (name,) = names
    assert json.loads(read_output(UUID(config_of(job)["project"]), name))["results"][0]["exit_code"] == 0


def test_no_output_is_read_for_a_job_of_another_type_or_another_worker(mia, native, runner):
    submit(mia)
    claim(native, runner)
    of_images = Lease.objects.get()
    submitted()
    other = claimed(WorkerFactory()).lease
    for lease, worker in ((other, other.worker), (of_images, other.worker)):
        named = CompleteMessage(result={"status": "succeeded", "output": str(uuid_of(lease.job_id))})
        messages = {lease.lease_ulid: WorkerMessage(worker, named)}
        assert with_read_results(messages) == messages


def test_a_large_output_is_read_while_the_job_is_processing(mia, native, runner):
    job = submit(mia)
    _, send = claim(native, runner)
    send("report", {"phase": "executing"})
    name = send("output", encoded({"results": [{"exit_code": 0, "stdout": BMF + " " * (1 << 20)}]})).json()["output"]
    assert send("complete", {"result": {"status": "succeeded", "output": name}}).json()["status"] == "running"
    assert Job.objects.get(pk=job.pk).state == JobState.PROCESSING


def test_an_output_of_another_job_is_not_read(mia, native, runner):
    submit(mia)
    _, send = claim(native, runner)
    name = send("output", encoded({"results": [{"exit_code": 0, "stdout": BMF}]})).json()["output"]
    send("report", {"phase": "executing"})
    other = submit(mia)
    _, send_other = claim(native, runner)
    send_other("report", {"phase": "executing"})
    send_other("complete", {"result": {"status": "succeeded", "output": name}})
    assert not Metric.objects.exists()
    assert Job.objects.get(pk=other.pk).state != JobState.FAILED


def test_a_final_failure_keeps_its_output_and_waits_for_no_result(mia, native, runner):
    job = submit(mia)
    _, send = claim(native, runner)
    name = send("output", encoded({"results": [{"exit_code": 3}], "error": "code 3"})).json()["output"]
    failed = {"status": "failed", "reason": "image_invalid", "final": True, "output": name}
    assert send("fail", {"result": failed}).json()["status"] == "failed"
    job.refresh_from_db()
    assert (job.state, job.failure_reason, job.failure_class, job.result) == (
        JobState.FAILED, "image_invalid", "job", {"output": name},
    )  # fmt: skip


def test_no_other_output_is_stored(mia, native, runner, wendy, worker):
    submit(mia)
    _, send = claim(native, runner)
    wrong = [b"{", b"[]", b'{"results": 1}', b'{"results": [{}]}', b'{"results": [{"exit_code": true}]}', b"\xff"]
    wrong += [b'{"results": [], "error": 1}', b'{"results": [{"exit_code": NaN}]}']
    for body in wrong:
        answer = send("output", {"output": base64.b64encode(body).decode()})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), body
    assert send("output", {"output": "no base64"}).status_code == 400
    lease = "rtl_" + "0" * 26
    refused(lambda: native.post(f"/v1/runtime/leases/{lease}/output", encoded({"results": []})), 409, "stale_lease")
    held = Job.objects.get().leases.get()
    refused(
        lambda: wendy.post(f"/v1/runtime/leases/{held.lease_ulid}/output", encoded({"results": []})), 409, "stale_lease"
    )
