"""Live logs as Server-Sent Events on the real server: resuming over restarts, limits, revocation, tenants, browsers."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
import requests
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from orchestrator.services import job_end
from runtime_jobs.models import ApiToken, JobStep, Membership
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted_steps
from tests.live_server import eventually, serving
from tests.orchestrator.admin.chromium import Chromium
from tests.orchestrator.step_logs.logs import append, end
from tests.workflow_runs import Runner, job_of, started
from workers.registry.tokens import digest_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SETTINGS = {"STREAM_AUTH_SECONDS": "0.5", "STREAM_STALL_SECONDS": "3"}


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    folder, secret = tmp_path_factory.mktemp("server"), settings.SECRET_KEY  # sessions are made in this process
    with serving(folder, DATABASE_URL=database_url, SECRET_KEY=secret, **SETTINGS) as found:
        yield found


@pytest.fixture
def organization():
    return OrganizationFactory(slug="sandtrace")


class RunningJob:
    """A job with steps that runs."""

    def __init__(self, organization, steps=2):
        submitted_steps(ProjectFactory(organization=organization))
        claim = claimed(WorkerFactory(), job_types=("steps",))
        self.lease, self.job = claim.lease, claim.job
        self.steps = [JobStep.objects.create(job=claim.job, index=index, run="true") for index in range(steps)]
        self.path = f"/v1/jobs/{claim.job.job_ulid}/logs/stream"

    def end(self):
        job_end.fail(lease_ulid=self.lease.lease_ulid, worker=self.lease.worker, reason="worker_error")


class EventSource:
    """A client that reads events one at a time, as a browser does."""

    def __init__(self, server, path, headers, last_id=None, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect(server.address)
        self.connection = http.client.HTTPConnection(*server.address)
        self.connection.sock = self.socket
        headers = {"Accept": "text/event-stream", **headers} | ({"Last-Event-ID": last_id} if last_id else {})
        self.connection.request("GET", path, headers=headers)
        self.answer = self.connection.getresponse()
        self.status, self.retry, self.last_id = self.answer.status, None, last_id

    def next(self):
        """Return the next event and its content; None at the end of the response."""
        fields = {}
        while line := self.answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            elif "event" in fields:
                self.last_id = fields["id"]
                return fields["event"], json.loads(fields["data"])
            elif "retry" in fields:
                self.retry, fields = int(fields["retry"]), {}
        return None

    def is_cut_off(self):
        try:
            while self.next():
                pass
        except (http.client.IncompleteRead, ConnectionError):
            return True
        return self.answer.isclosed() and False

    def close(self):
        self.answer.close()
        self.socket.close()


@pytest.fixture
def source(server):
    with contextlib.ExitStack() as opened:

        def connect(running, token, *, of=server, **options):
            headers = token if isinstance(token, dict) else {"Authorization": f"Bearer {token}"}
            found = EventSource(of, running.path, headers, **options)
            opened.callback(found.close)
            return found

        yield connect


def number(server, name):
    lines = requests.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def test_a_job_from_its_first_chunk_to_its_end(server, organization, source):
    running = RunningJob(organization)
    client = source(running, api_token(organization, ("jobs:read",)))
    assert client.status == 200
    assert client.answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert client.answer.headers["Cache-Control"] == "no-store"
    first, second = running.steps
    append(first, 0, b"one\n")
    assert client.next() == ("chunk", {"step": 0, "offset": 0, "text": "one\n"})
    assert client.retry == 3000
    append(second, 0, b"two\n")
    assert client.next() == ("chunk", {"step": 1, "offset": 0, "text": "two\n"})
    append(first, 1, b"late\n")
    assert client.next() == ("chunk", {"step": 0, "offset": 4, "text": "late\n"})
    end(first, timezone.now())
    name, step = client.next()
    assert (name, step["step"], step["status"], step["conclusion"]) == ("step", 0, "completed", "success")
    running.end()
    assert client.next()[0] == "end"
    assert client.next() is None


def test_curl_receives_chunks_as_they_are_printed_until_the_end(server, organization):
    running, token = RunningJob(organization, steps=1), api_token(organization)
    command = ["curl", "-sSN", "-m", "120", "-H", f"Authorization: Bearer {token}", f"{server.url}{running.path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        try:
            for seq in range(3):
                append(running.steps[0], seq, b"line %d\n" % seq)
                while not (line := curl.stdout.readline()).startswith("data: "):
                    assert line, "the stream ended"
                assert json.loads(line.removeprefix("data: "))["text"] == f"line {seq}\n"
            running.end()
            rest = curl.stdout.read()
            curl.wait(60)
        finally:
            curl.kill()
    assert "\nevent: end\ndata: " in rest
    assert curl.wait() == 0


def test_a_client_resumes_over_a_restart_without_gap_or_repetition(
    server, organization, source, database_url, tmp_path
):
    running, token = RunningJob(organization, steps=1), api_token(organization)
    (step,) = running.steps
    found, last_id = "", None
    for seq in range(4):
        append(step, 2 * seq, f"{2 * seq}\n".encode())
        append(step, 2 * seq + 1, f"{2 * seq + 1}\n".encode())
        with contextlib.ExitStack() as of_process:
            # Every other process is a new one that ends.
            other = of_process.enter_context(serving(tmp_path, DATABASE_URL=database_url)) if seq % 2 else server
            client = source(running, token, of=other, last_id=last_id)
            while found.count("\n") < 2 * seq + 2:
                name, chunk = client.next()
                assert (name, chunk["offset"]) == ("chunk", len(found))
                found += chunk["text"]
            last_id = client.last_id
    assert found == "".join(f"{seq}\n" for seq in range(8))


def test_a_hundred_clients_share_the_reads(server, organization, source):
    running = RunningJob(organization)
    clients = [source(running, api_token(organization)) for _ in range(2) for _ in range(50)]
    append(running.steps[0], 0, b"first")
    assert {client.next()[1]["text"] for client in clients} == {"first"}
    reads = number(server, "orchestrator_stream_reads_total")
    append(running.steps[0], 1, b"second")
    assert {client.next()[1]["text"] for client in clients} == {"second"}
    assert number(server, "orchestrator_stream_reads_total") - reads < 10


def test_the_101st_stream_of_a_token_is_refused(server, organization, source):
    running, token = RunningJob(organization), api_token(organization)
    assert {source(running, token).status for _ in range(100)} == {200}
    refused = source(running, token)
    assert refused.status == 429
    assert refused.answer.headers["Retry-After"].isdecimal()


def test_strangers_get_what_a_job_that_does_not_exist_gets(server, organization, source):
    running, stranger = RunningJob(organization), OrganizationFactory(slug="neighbour")
    for token, status in [
        (api_token(stranger), 404),
        (api_token(organization, ("jobs:write",)), 403),
        ("rto_api_x", 401),
    ]:
        answer = requests.get(
            server.url + running.path,
            headers={"Authorization": f"Bearer {token}", "Accept": "text/event-stream"},
            timeout=30,
        )
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert requests.get(server.url + running.path, timeout=30).status_code == 401


def test_a_revoked_token_ends_its_stream(server, organization, source):
    running, token = RunningJob(organization), api_token(organization)
    client = source(running, token)
    append(running.steps[0], 0, b"seen")
    assert client.next()[1]["text"] == "seen"
    ApiToken.objects.filter(digest=digest_of(token)).update(revoked_at=timezone.now())
    assert client.is_cut_off()


def test_a_member_with_a_session_reads_the_stream(server, organization, source):
    user = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=user, organization=organization)
    browser = Client()
    browser.force_login(user)
    running = RunningJob(organization)
    client = source(running, {"Cookie": f"sessionid={browser.cookies['sessionid'].value}"})
    append(running.steps[0], 0, b"text")
    assert client.next()[1]["text"] == "text"


def test_a_client_that_does_not_read_is_cut_off(server, organization, source):
    running, token = RunningJob(organization), api_token(organization)
    idle, reads = source(running, token, receive_buffer=4096), source(running, token)
    before, size = number(server, 'orchestrator_streams_ended_total{reason="stalled"}'), 0
    for seq in range(64):
        append(running.steps[0], seq, b"x" * (128 << 10))
        while size < (seq + 1) << 17:
            size += len(reads.next()[1]["text"])
    eventually(lambda: number(server, 'orchestrator_streams_ended_total{reason="stalled"}') > before, seconds=60)
    assert idle.is_cut_off()


def test_the_log_grows_on_the_page_of_an_operator(server, organization, tmp_path):
    operator = get_user_model().objects.create_superuser("olga", password="correct horse battery")
    session = Client()
    session.force_login(operator)
    running = RunningJob(organization)
    append(running.steps[0], 0, b"displayed at first\n")
    page, text = (
        f"{server.url}/admin/runtime_jobs/job/{running.job.pk}/change/",
        "document.querySelector('pre.log').textContent",
    )
    with Chromium(tmp_path / "chromium") as chromium, chromium.tab() as browser:
        browser.cookie("sessionid", session.cookies["sessionid"].value, server.url)
        browser.open(page)
        assert browser.evaluate(text) == "displayed at first\n"
        append(running.steps[1], 0, b"\x1b[31m<b>streamed</b>\x1b[0m\n")
        browser.until(f"{text} === 'displayed at first\\n<b>streamed</b>\\n'")
        append(running.steps[0], 1, b"late\n")
        browser.until(f"{text}.endsWith('</b>\\nlate\\n')")
        assert number(server, 'orchestrator_streams{kind="events"}') == 1
        running.end()
        browser.until("document.querySelector('pre.log').dataset.ended === 'yes'")
        assert browser.evaluate(text) == "displayed at first\n<b>streamed</b>\nlate\n"
        assert browser.errors == []


def test_the_log_grows_on_a_member_s_page_of_a_run(server, tmp_path):
    steps = "[{name: Compile, run: make}, {name: Test, run: make test}]"
    run = started({"build": {"steps": steps}, "test": {"needs": "build"}})
    user = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=user, organization=run.repository.project.organization)
    session = Client()
    session.force_login(user)
    runner = Runner()
    runner.claim_all()
    compiled, tested = JobStep.objects.filter(job=job_of(run, "build")).order_by("index")
    append(compiled, 0, b"displayed at first\n")
    log = "document.querySelector('[data-step=\"%d\"] pre.log').textContent"
    result = "document.querySelector('[data-step=\"%d\"] [data-result]').textContent"
    with Chromium(tmp_path / "chromium") as chromium, chromium.tab() as browser:
        browser.show(height=1000)
        browser.cookie("sessionid", session.cookies["sessionid"].value, server.url)
        browser.open(f"{server.url}/workflow-runs/{run.pk}/")
        assert browser.evaluate(log % 0) == "displayed at first\n"
        append(compiled, 1, b"\x1b[31m<b>streamed</b>\x1b[0m\n")
        browser.until(f"{log % 0} === 'displayed at first\\n<b>streamed</b>\\n'")
        end(compiled, timezone.now())
        browser.until(f"{result % 0} === 'success'")
        append(tested, 0, b"tests begin\n")
        browser.until(f"{log % 1} === 'tests begin\\n'")
        assert browser.evaluate("document.querySelectorAll('.steps details[open]').length") == 2, "what prints is open"
        browser.picture(pictures_of(tmp_path) / "workflow-run.png", whole=True)
        end(tested, timezone.now())
        browser.until(f"{result % 1} === 'success'")
        runner.end("build")
        browser.until("document.querySelector('.steps').dataset.ended === 'yes'")
        # The state of the run and its graph are refreshed without the page being loaded again.
        browser.until("document.querySelectorAll('.node.good').length === 1")
        runner.claim_all()
        runner.end("test", "failure")
        browser.until("document.querySelector('#run .state').textContent === 'failure'")
        assert browser.evaluate(log % 0) == "displayed at first\n<b>streamed</b>\n"
        assert browser.evaluate("document.querySelector('.node.chosen .name').textContent") == "build"
        assert browser.errors == []


def pictures_of(folder):
    """The folder of the pictures; with SCREENSHOTS in the environment it outlives the test."""
    return Path(os.environ.get("SCREENSHOTS") or folder)


def test_the_server_did_not_complain(server):
    assert "Traceback" not in server.log()
    assert " ERROR " not in server.log()
