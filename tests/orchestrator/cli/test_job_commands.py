"""`stella job …` on a real server: what it sends and what it writes."""

import json

import pytest

from orchestrator.step_logs import job_log_writes
from runtime_jobs.models import Job
from tests.live_server import eventually
from tests.orchestrator.protocols.stella.requests import claim, complete, fail

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SUBMIT = ("job", "submit", "--type", "scan")


def value_of(finished):
    assert finished.code == 0, finished.err
    return json.loads(finished.out)


def append(found, seq, text):
    job_log_writes.append_log(lease_ulid=found.lease.lease_ulid, worker=found.lease.worker, step=0, seq=seq, chunk=text)


def test_all_options_of_a_submit_reach_the_job(stella, tmp_path):
    first = stella.run(*SUBMIT).out.strip()
    payload = tmp_path / "payload.json"
    payload.write_text('{"imageRef": "nginx:latest"}')
    job = value_of(
        stella.run(
            *("job", "submit", "--type", "advisory-sync", "--payload-file", str(payload), "-o", "json"),
            *("--tenant", "acme-corp", "--project", "web", "--priority", "low", "--depends-on", first),
            *("--cursor", "advisory=a=b", "--cursor", "vex=2", "--job-timeout", "5m"),
            *("--correlation-id", "trace-1", "--requested-by", "auditor@example.com"),
        )
    )
    assert job["payload"] == {"imageRef": "nginx:latest"}
    assert (job["cursors"], job["timeoutSeconds"]) == ({"advisory": "a=b", "vex": "2"}, 300)
    assert (job["tenant"], job["project"], job["priority"]) == ("acme-corp", "web", "low")
    assert (job["correlationId"], job["requestedBy"]) == ("trace-1", "auditor@example.com")
    assert job["status"] == "created"
    shown = value_of(stella.run("job", "show", "--id", job["jobId"], "-o", "json"))
    assert shown["dependencies"] == [first]


def test_a_payload_is_read_from_standard_input(stella):
    found = stella.run(*SUBMIT, "--payload-file", "-", "-o", "json", stdin='{"imageRef": "redis"}')
    assert value_of(found)["payload"] == {"imageRef": "redis"}


def test_the_same_key_returns_the_same_job(stella):
    first, second = (stella.run(*SUBMIT, "--idempotency-key", "scan-1").out for _ in range(2))
    assert first == second
    assert Job.objects.count() == 1


def test_two_submits_without_a_key_are_two_jobs(stella):
    assert stella.run(*SUBMIT).out != stella.run(*SUBMIT).out


def test_a_list_has_as_many_jobs_as_requested_over_several_pages(stella, monkeypatch):
    monkeypatch.setattr("orchestrator.cli.job_commands.PAGE", 2)
    ids = [stella.run(*SUBMIT).out.strip() for _ in range(5)]
    newest_first = ids[::-1]
    assert [job["jobId"] for job in value_of(stella.run("job", "list", "-o", "json"))] == newest_first
    listed = value_of(stella.run("job", "list", "--limit", "3", "-o", "json"))
    assert [job["jobId"] for job in listed] == newest_first[:3]
    lines = stella.run("job", "list", "--limit", "1").out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", ids[-1]]


def test_each_filter_of_the_list(stella, worker):
    scan = stella.run(*SUBMIT, "--correlation-id", "trace-1").out.strip()
    export = stella.run("job", "submit", "--type", "export", "--priority", "low").out.strip()
    complete(claim(worker))

    def ids(*words):
        return {job["jobId"] for job in value_of(stella.run("job", "list", *words, "-o", "json"))}

    assert ids("--type", "export", "--tenant", "acme-corp") == {export}
    assert ids("--status", "completed") == {scan}
    assert ids("--priority", "low") == {export}
    assert ids("--correlation-id", "trace-1") == {scan}
    assert ids("--since", "2000-01-01", "--until", "2000-01-02T00:00:00+01:00") == set()
    assert ids("--since", "2000-01-01") == {scan, export}
    assert ids("--replay-of", scan) == set()


def test_one_job_is_shown_with_its_attempts_and_failure(stella, worker):
    job_id = stella.run(*SUBMIT).out.strip()
    waiting = stella.run("job", "show", "--id", job_id).out
    assert "waits" in waiting
    fail(claim(worker))
    shown = stella.run("job", "show", "--id", job_id.upper()).out
    assert "command_failed" in shown
    assert f"attempt 1: failed, worker {worker.worker_id}" in shown


def test_a_submit_that_follows_writes_the_log_and_then_the_end(stella, worker):
    process = stella.start(*SUBMIT, "--follow")
    eventually(Job.objects.exists)
    found = claim(worker)
    append(found, 0, b"one\n")
    assert process.stdout.readline() == "one\n"
    append(found, 1, "zwölf\n".encode())
    complete(found)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "zwölf\n")
    job_id, end = err.splitlines()
    assert end.startswith(f"{job_id} completed")


def test_a_log_continues_with_the_next_attempt(stella, worker):
    """Also if that one has ended before the command reads again."""
    process = stella.start(*SUBMIT, "--follow", "-o", "json")
    eventually(Job.objects.exists)
    first = claim(worker)
    append(first, 0, b"one\n")
    lines = [process.stdout.readline()]
    fail(first, "worker_shutdown")  # which is retried automatically
    second = claim(worker)
    append(second, 0, b"two\n")
    complete(second)
    out, _ = process.communicate(timeout=60)
    *events, job = map(json.loads, [*lines, *out.splitlines()])
    assert [event["text"] for event in events if event["event"] == "chunk"] == ["one\n", "two\n"]
    assert (process.returncode, job["status"], job["attempt"]) == (0, "completed", 2)


def test_logs_are_written_with_and_without_an_end(stella, worker):
    job_id = stella.run(*SUBMIT).out.strip()
    found = claim(worker)
    append(found, 0, b"one\n")
    assert stella.run("job", "logs", "--id", job_id).out == "one\n"
    complete(found)
    assert stella.run("job", "logs", "--id", job_id).out == "one\n"
    followed = stella.run("job", "logs", "--id", job_id, "--follow")
    assert (followed.code, followed.out) == (0, "one\n")


def test_a_cancel_says_what_it_did(stella, worker):
    waiting = stella.run(*SUBMIT).out.strip()
    assert stella.run("job", "cancel", "--id", waiting).out == "canceled\n"
    running = stella.run(*SUBMIT).out.strip()
    claim(worker)
    requested = stella.run("job", "cancel", "--id", running, "--reason", "superseded")
    assert (requested.code, requested.out) == (0, "requested\n")
    assert Job.objects.exclude(cancel_requested_at=None).get(finished_at=None).cancel_message == "superseded"
    assert stella.run("job", "cancel", "--id", waiting, "-o", "json").code == 0


def test_an_error_is_a_problem_document_for_programs(stella):
    found = stella.run("job", "show", "--id", "01890a5d-ac96-774b-bcce-b302099a8057", "-o", "json")
    problem = json.loads(found.err)
    assert (found.out, problem["code"], problem["exitCode"]) == ("", "not_found", 66)
    assert problem["request_id"]
