"""`stella job submit --wait` and its siblings end with the exit code of the job, or with one that says what is wrong."""

import socket

import pytest

from orchestrator.services import job_end
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from tests.factories import OrganizationFactory, api_token
from tests.live_server import eventually
from tests.orchestrator.protocols.stella.requests import MISSING, claim

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SUBMIT = ("job", "submit", "--type", "scan", "--payload", '{"imageRef": "nginx:latest"}')


def ending(found, *, code, **options):
    lease = found.lease
    if code:
        job_end.fail(
            lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed", exit_code=code, **options
        )
    else:
        job_end.complete(lease_ulid=lease.lease_ulid, worker=lease.worker, exit_code=code, **options)


def end_of(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("code", [0, 7])
def test_a_submit_that_waits_ends_with_the_exit_code_of_the_job(stella, worker, code):
    process = stella.start(*SUBMIT, "--wait")
    eventually(Job.objects.exists)
    ending(claim(worker), code=code)
    found, out, err = end_of(process)
    assert (found, out.strip()) == (code, str(uuid_of(Job.objects.get().root_job_ulid)))
    assert f"exit code {code}" in err


def test_a_job_that_failed_without_an_exit_code_is_one(stella, worker):
    job_id = stella.run(*SUBMIT).out.strip()
    lease = claim(worker).lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed", message="no image")
    found = stella.run("job", "wait", "--id", job_id)
    assert found.code == 1
    assert "command_failed: no image" in found.err


def test_a_canceled_job_is_130(stella):
    job_id = stella.run(*SUBMIT).out.strip()
    assert stella.run("job", "cancel", "--id", job_id, "--reason", "superseded").code == 0
    assert stella.run("job", "wait", "--id", job_id).code == 130


def test_time_that_is_up_is_124_and_the_job_continues(stella):
    found = stella.run(*SUBMIT, "--wait", "--timeout", "0.01")
    job = Job.objects.get()
    assert (found.code, found.out.strip(), job.state) == (124, str(uuid_of(job.root_job_ulid)), "queued")
    assert stella.run(*SUBMIT, "--follow", "--timeout", "0.3").code == 124


@pytest.mark.parametrize("command", ["show", "wait", "logs", "cancel"])
@pytest.mark.parametrize("job_id", [MISSING, "job-12345", "../quotas"])
def test_no_such_id_is_66(stella, command, job_id):
    assert stella.run("job", command, "--id", job_id).code == 66


def test_another_tenants_job_is_66(stella):
    job_id = stella.run(*SUBMIT).out.strip()
    intruder = api_token(OrganizationFactory(slug="intruder"))
    assert stella.run("job", "show", "--id", job_id, STELLA_TOKEN=intruder).code == 66


def test_a_server_that_is_away_is_69(stella):
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        url = f"http://127.0.0.1:{closed_soon.getsockname()[1]}"
    found = stella.run(*SUBMIT, "--wait", "--server", url)
    assert found.code == 69
    assert "Connection refused" in found.err


def test_what_the_server_refuses_is_77(stella, organization):
    reader = api_token(organization, ("orch:read",))
    found = stella.run(*SUBMIT, "--wait", STELLA_TOKEN=reader)
    assert found.code == 77
    assert "jobs:write" in found.err
    assert stella.run(*SUBMIT, STELLA_TOKEN="rto_api_unknown").code == 77
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("job",),
        ("job", "submit"),
        ("job", "submit", "--type", "scan", "--payload", "[]"),
        ("job", "submit", "--type", "scan", "--payload", '{"a": 1, "a": 2}'),
        ("job", "submit", "--type", "scan", "--payload", '{"a": NaN}'),
        ("job", "submit", "--type", "no-such-type"),
        ("job", "submit", "--type", "scan", "--timeout", "5"),
        ("job", "wait", "--id", MISSING, "--timeout", "soon"),
        ("job", "list", "--sta", "queued"),
        ("job", "list", "--status", "finished"),
        ("job", "list", "--since", "yesterday"),
        ("quota", "set", "--tenant", "acme-corp"),
        ("events", "--timeout", "5"),
    ],
)
def test_wrong_usage_is_64(stella, words):
    found = stella.run(*words)
    assert (found.code, found.out) == (64, "")
    assert found.err.startswith("stella: ")
    assert not Job.objects.exists()
