"""`GET /runs/{runId}/logs` on a real server: the log of a run as Server-Sent Events."""

import json

import pytest
import requests

from orchestrator.step_logs import job_log_writes
from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token
from tests.live_server import serving
from tests.orchestrator.protocols.stella.requests import claim, complete, submit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=database_url, STREAM_AUTH_SECONDS="0.5") as found:
        yield found


def follow(server, token, job_id, **headers):
    return requests.get(
        f"{server.url}/runs/{job_id}/logs",
        headers={"Authorization": f"Bearer {token}", "Accept": "text/event-stream", **headers},
        stream=True,
        timeout=30,
    )


def events(response):
    """The names and contents of all events until the end."""
    found, name = [], ""
    for line in response.iter_lines(decode_unicode=True):
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
    return found


@pytest.fixture
def run(server):
    project = ProjectFactory(organization=OrganizationFactory(slug="acme-corp"))
    shown = submit(Caller(api_token(project.organization)))
    return shown["jobId"], claim(WorkerFactory()), project.organization


def append(found, seq, text):
    job_log_writes.append_log(lease_ulid=found.lease.lease_ulid, worker=found.lease.worker, step=0, seq=seq, chunk=text)


def test_a_token_that_only_reads_follows_a_run_to_its_end(server, run):
    job_id, found, organization = run
    token = api_token(organization, ("orch:read",))
    append(found, 0, b"one\n")
    with follow(server, token, job_id) as response:
        assert (response.status_code, response.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        append(found, 1, b"two\n")
        complete(found)
        followed = events(response)
    assert "".join(content["text"] for name, content in followed if name == "chunk") == "one\ntwo\n"
    assert followed[-1] == ("end", {"status": "completed", "state": "succeeded", "exit_code": None})


def test_another_tenants_run_is_not_there(server, run):
    job_id = run[0]
    with follow(server, api_token(OrganizationFactory(slug="intruder")), job_id) as response:
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
