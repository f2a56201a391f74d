"""Both shapes over the real server, with a real WebSocket client and a real database (contract 0.1, 0.2 and 3)."""

import contextlib
import json
import socket
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import requests
from django.db import connections
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as websocket

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.protocols.bencher.states import job_status
from orchestrator.services import cancellation, expiry, runners
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import uuid_of
from tests.factories import ALICE, OPERATOR, ProjectFactory, project_key
from tests.live_server import eventually, serving
from tests.orchestrator.protocols.bencher.channel.scene import new_runner, new_spec, order, row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SECONDS = 30  # for an answer, on a machine under load
RESULTS = [{"exit_code": 0, "stdout": json.dumps({"bench": {"latency": {"value": 1.0}}})}]


def environment(database_url, **changes):
    return {"DATABASE_URL": database_url, **changes}


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("channel"), **environment(database_url)) as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.fixture
def spec():
    return new_spec()


@pytest.fixture
def runner(spec):
    return new_runner(spec)


class Line:
    """One WebSocket of a runner."""

    def __init__(self, server, path, key, **options):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"ws://127.0.0.1:{server.address[1]}/v0/runners/{path}"
        connecting = websocket(
            url,
            additional_headers=headers,
            compression=None,
            ping_interval=None,
            max_size=None,
            open_timeout=SECONDS,
            close_timeout=1,
            **options,
        )
        self._stack = contextlib.ExitStack()
        self.socket = self._stack.enter_context(connecting)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def send(self, event, **members):
        self.socket.send(json.dumps({"event": event, **members}))

    def receive(self, seconds=SECONDS):
        return json.loads(self.socket.recv(seconds))

    def ask(self, event, **members):
        self.send(event, **members)
        return self.receive()

    def is_silent(self, seconds=0.3):
        with contextlib.suppress(TimeoutError):
            self.socket.recv(seconds)
            return False
        return True

    def end(self):
        """The Close frame that ends the connection; None if there is none."""
        try:
            while True:
                self.socket.recv(SECONDS)
        except ConnectionClosed as closed:
            return closed.rcvd


def channel(server, runner, key=None):
    return Line(server, f"{runner.slug}/channel", key or runner.token)


def executing(line, job):
    """Claim the job and begin to execute it. Returns its UUID on the wire."""
    found = line.ask("ready", poll_timeout=30)
    assert found["event"] == "job"
    assert found["uuid"] == str(uuid_of(job.job_ulid))
    assert line.ask("running") == {"event": "ack", "job": found["uuid"]}
    assert status(job) == "running"
    return found["uuid"]


def status(job):
    return str(job_status(row(job)))


# --- The channel ------------------------------------------------------------------------------------------------------


def test_a_job_from_ready_to_processed_and_the_next_poll(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        for _ in range(3):
            assert line.ask("heartbeat") == {"event": "ack", "job": uuid}
        assert line.ask("ready") == {"event": "ack", "job": uuid}
        assert line.ask("completed", job=uuid, results=RESULTS) == {"event": "ack", "job": uuid}
        assert status(job) == "processed"
        line.send("heartbeat")
        assert line.is_silent(), "late beats have no reply"
        assert line.ask("completed", job=uuid, results=RESULTS) == {"event": "ack", "job": uuid}
        began = time.monotonic()
        assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}
        assert time.monotonic() - began >= 1
        assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}


def test_a_job_that_is_submitted_during_the_poll_arrives(server, spec, runner):
    with channel(server, runner) as line:
        line.send("ready", poll_timeout=60)
        assert line.is_silent()
        job = order(spec)
        assert line.receive()["uuid"] == str(uuid_of(job.job_ulid))


def test_a_runner_is_found_by_its_uuid_too(server, runner):
    with Line(server, f"{runner.uuid}/channel", runner.token) as line:
        assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}


def test_a_failed_job_keeps_its_output(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        results = [{"exit_code": 7, "stderr": "no"}]
        assert line.ask("failed", job=uuid, results=results, error="exit 7")["event"] == "ack"
        assert status(job) == "failed"
        assert (row(job).exit_code, row(job).failure_message) == (7, "exit 7")


def test_a_cancel_reaches_the_runner_once_at_its_next_beat(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=60)
        assert line.ask("heartbeat") == {"event": "cancel"}
        line.send("heartbeat")
        assert line.is_silent()
        assert line.ask("canceled", job=uuid) == {"event": "ack", "job": uuid}
        assert row(job).state == "canceled"
        assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}


def test_completed_before_running_drops_the_connection(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = line.ask("ready")["uuid"]
        line.send("completed", job=uuid, results=[])
        assert line.end() is None
    assert status(job) == "claimed"


def test_a_heartbeat_before_running_leaves_the_job_claimed(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = line.ask("ready")["uuid"]
        assert line.ask("heartbeat") == {"event": "ack", "job": uuid}
        assert status(job) == "claimed"


@pytest.mark.parametrize("frame", ["", "x", "[]", '{"event":"x"}', '{"event":"ready","poll_timeout":0}'])
def test_an_invalid_frame_while_idle_drops_the_connection(server, runner, frame):
    with channel(server, runner) as line:
        line.socket.send(frame)
        assert line.end() is None


def test_bad_input_during_execution_is_ignored(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        expires_at = Lease.objects.get().expires_at
        for frame in ("", "x", "{}", '{"event":"x"}', "[" * 100_000, b"\0\xff"):
            line.socket.send(frame)
        line.socket.ping().wait(SECONDS)
        assert line.ask("ready") == {"event": "ack", "job": uuid}
        assert Lease.objects.get().expires_at == expires_at, "nothing was renewed"
        assert line.ask("heartbeat") == {"event": "ack", "job": uuid}


def test_a_result_above_the_limit_is_kept_as_far_as_it_came_and_names_the_limit(server, spec, runner):
    """The server dropped it with the connection: no output, and the job failed as that of a lost runner."""
    project = ProjectFactory()
    reader = {"Authorization": f"Bearer {project_key(project)}"}
    text, limit = "x€" * (2 << 20), 4 << 20  # eight MiB; the limit is within a character
    for event, frames in (("completed", 1), ("failed", 3)):
        job = order(spec, owner=project)
        with channel(server, runner) as line:
            uuid = executing(line, job)
            results = [{"exit_code": 3, "stdout": "first"}, {"exit_code": 4, "stderr": "é", "stdout": text}]
            message = json.dumps({"event": event, "job": uuid, "results": results, "error": "e"}, ensure_ascii=False)
            part = len(message) // frames + 1
            line.socket.send(message if frames == 1 else [message[n : n + part] for n in range(0, len(message), part)])
            assert line.receive() == {"event": "ack", "job": uuid}
            assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}  # the connection is as before
        ended = eventually(lambda job=job: row(job) if row(job).failure_reason else None)
        size = len(message.encode())
        assert f"{size:,} bytes" in ended.failure_message
        assert f"{limit:,}" in ended.failure_message
        assert "RUNNER_MESSAGE_LIMIT_BYTES" in ended.failure_message
        assert ended.failure_reason == ("result_unreadable" if event == "completed" else "command_failed")
        url = f"{server.url}/v0/projects/{project.uuid}/jobs/{uuid}"
        output = requests.get(url, headers=reader, timeout=SECONDS).json()["output"]
        assert output["error"] == ended.failure_message
        assert output["results"][0] == results[0]
        kept = output["results"][1]["stdout"]
        assert text.startswith(kept)
        assert limit - 1000 < len(kept.encode()) <= limit


def test_a_result_above_the_limit_after_the_lease_was_lost_names_the_limit_too(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
    expiry.expire(job_ulid=job.job_ulid, now=database_now() + timedelta(seconds=91))
    assert row(job).state == "lost"
    with channel(server, runner) as line:
        results = [{"exit_code": 0, "stdout": "x" * (5 << 20)}]
        assert line.ask("completed", job=uuid, results=results) == {"event": "ack", "job": uuid}
    assert "RUNNER_MESSAGE_LIMIT_BYTES" in eventually(lambda: row(job).failure_message)


def test_a_message_just_below_the_limit_counts(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        iteration = {"exit_code": 0, "stdout": "x" * ((4 << 20) - 1000), "output": {"\0bencher": "{}", "a": "\ufffd"}}
        assert line.ask("completed", job=uuid, results=[iteration])["event"] == "ack"
    assert status(job) in {"processed", "failed"}


def test_two_channels_of_one_runner_execute_two_jobs(server, spec, runner):
    jobs = [order(spec) for _ in range(2)]
    with channel(server, runner) as first, channel(server, runner) as second:
        uuids = [executing(line, job) for line, job in zip((first, second), jobs, strict=True)]
        for line, uuid in zip((first, second), uuids, strict=True):
            assert line.ask("completed", job=uuid, results=[])["job"] == uuid
    assert [status(job) for job in jobs] == ["processed", "processed"]


def test_a_hundred_beats_in_a_burst_are_answered_in_order(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        for _ in range(100):
            line.send("heartbeat")
        assert [line.receive() for _ in range(100)] == [{"event": "ack", "job": uuid}] * 100


# --- Handshakes -------------------------------------------------------------------------------------------------------


def refused(server, path, key, **options):
    with pytest.raises(InvalidStatus) as found:
        Line(server, path, key, **options)
    response = found.value.response
    body = json.loads(response.body)
    assert set(body) >= {"request_id", "message"}
    return response.status_code


def test_handshakes_without_a_valid_key_are_401(server, spec, runner):
    other = new_runner(spec, slug="other")
    before = list(Lease.objects.values())
    for key in (None, "x", runner.token[:-1], "bencher_runner_" + "x" * 30, "rto_worker_" + "x" * 43, other.token):
        assert refused(server, f"{runner.slug}/channel", key) == 401
        assert refused(server, f"{runner.slug}/jobs/{uuid4()}", key) == 401
    assert list(Lease.objects.values()) == before


def test_an_archived_runner_is_refused_and_its_open_socket_gets_no_job(server, spec, runner):
    with channel(server, runner) as line:
        assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}
        runners.change_runner(worker_id=runner.worker_id, archived=True, cause=Cause(OPERATOR))
        assert refused(server, f"{runner.slug}/channel", runner.token) == 401
        order(spec)
        assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}
        runners.change_runner(worker_id=runner.worker_id, archived=False, cause=Cause(OPERATOR))
    with channel(server, runner) as line:
        assert line.ask("ready", poll_timeout=5)["event"] == "job"


def test_a_handshake_has_no_subprotocol_and_needs_no_origin(server, runner):
    with Line(server, f"{runner.slug}/channel", runner.token, subprotocols=["x"]) as line:
        assert line.socket.subprotocol is None
        assert "Sec-WebSocket-Extensions" not in line.socket.response.headers


def test_a_request_without_upgrade_is_no_channel(server, runner):
    headers = {"Authorization": f"Bearer {runner.token}"}
    response = requests.get(f"{server.url}/v0/runners/{runner.slug}/channel", headers=headers, timeout=SECONDS)
    assert response.status_code in {400, 404}


# --- The claim by long poll -------------------------------------------------------------------------------------------


def poll(server, runner, body=None, key=None):
    headers = {"Authorization": f"Bearer {key or runner.token}"}
    body = {"poll_timeout": 1} if body is None else body
    return requests.post(f"{server.url}/v0/runners/{runner.slug}/jobs", json=body, headers=headers, timeout=120)


def test_a_long_poll_without_a_job_is_null_and_never_early(server, runner):
    began = time.monotonic()
    response = poll(server, runner)
    assert (response.status_code, response.text) == (200, "null")
    assert time.monotonic() - began >= 1


def test_a_long_poll_gets_the_claimed_job(server, spec, runner):
    job = order(spec)
    found = poll(server, runner, {"poll_timeout": 61, "unknown": 1}).json()
    assert found["uuid"] == str(uuid_of(job.job_ulid))
    assert "event" not in found
    assert status(job) == "claimed"


@pytest.mark.parametrize("seconds", [0, 901, -1, 1.5, "30", True])
def test_a_long_poll_with_an_invalid_time_is_400(server, runner, seconds):
    response = poll(server, runner, {"poll_timeout": seconds})
    assert response.status_code == 400
    assert "poll_timeout" in response.json()["message"]


def test_a_long_poll_without_a_valid_key_is_401(server, spec, runner):
    other = new_runner(spec, slug="other")
    for key in ("x", "bencher_runner_" + "x" * 30, other.token, "bencher_user_" + "x" * 30):
        assert poll(server, runner, key=key).status_code == 401
    response = requests.post(f"{server.url}/v0/runners/{runner.slug}/jobs", json={}, timeout=SECONDS)
    assert response.status_code == 401


def test_the_path_of_the_long_poll_has_options(server, runner):
    response = requests.options(f"{server.url}/v0/runners/{runner.slug}/jobs", timeout=SECONDS)
    assert (response.status_code, response.text) == (200, "null")


# --- The socket of one job --------------------------------------------------------------------------------------------


def job_socket(server, runner, uuid, **options):
    return Line(server, f"{runner.slug}/jobs/{uuid}", runner.token, **options)


@pytest.mark.parametrize(
    ("final", "reason", "expected"),
    [
        ({"event": "completed", "results": RESULTS}, '"job_completed"', "processed"),
        ({"event": "completed", "exit_code": 0, "stdout": RESULTS[0]["stdout"]}, "job completed", "processed"),
        ({"event": "failed", "results": [], "error": "x"}, '"job_failed"', "failed"),
        ({"event": "failed", "error": "x", "exit_code": 3}, "job failed", "failed"),
        ({"event": "canceled"}, '"job_canceled_by_runner"', "canceled"),
    ],
)
def test_a_job_on_its_own_socket(server, spec, runner, final, reason, expected):
    job = order(spec)
    uuid = poll(server, runner).json()["uuid"]
    with job_socket(server, runner, uuid) as line:
        assert line.ask("running") == {"event": "ack"}
        assert line.ask("heartbeat") == {"event": "ack"}
        assert status(job) == "running"
        line.socket.send(json.dumps(final))
        assert line.receive() == {"event": "ack"}
        found = line.end()
        assert (found.code, found.reason) == (1000, reason)
    assert status(job) == expected


def test_a_key_may_be_the_subprotocol_which_is_echoed(server, spec, runner):
    order(spec)
    uuid = poll(server, runner).json()["uuid"]
    name = f"bearer.{runner.token}"
    with Line(server, f"{runner.slug}/jobs/{uuid}", None, subprotocols=[name]) as line:
        assert line.socket.subprotocol == name
        line.ask("running")
        assert line.ask("completed", exit_code=0) == {"event": "ack"}
        assert line.end().reason == "job completed"
    assert refused(server, f"{runner.slug}/jobs/{uuid}", None, subprotocols=["bearer.x"]) == 401


def test_a_cancel_closes_the_socket_of_the_job(server, spec, runner):
    job = order(spec)
    uuid = poll(server, runner).json()["uuid"]
    with job_socket(server, runner, uuid) as line:
        line.ask("running")
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=60)
        assert line.ask("heartbeat") == {"event": "cancel"}
        found = line.end()
        assert (found.code, found.reason) == (1000, '"job_canceled"')
    assert refused(server, f"{runner.slug}/jobs/{uuid}", runner.token) == 409


def test_a_runner_reconnects_to_its_running_job(server, spec, runner):
    job = order(spec)
    uuid = poll(server, runner).json()["uuid"]
    with job_socket(server, runner, uuid) as line:
        line.ask("running")
        started_at = row(job).executing_at
    with job_socket(server, runner, uuid) as line:
        assert line.ask("running") == {"event": "ack"}
        assert row(job).executing_at == started_at
        assert line.ask("completed", results=[]) == {"event": "ack"}
    assert status(job) == "processed"


def test_the_socket_of_a_job_is_refused_in_the_order_of_the_contract(server, spec, runner):
    other = new_runner(spec, slug="other")
    job = order(spec)
    uuid = uuid_of(job.job_ulid)
    assert refused(server, f"{runner.slug}/jobs/{uuid4()}", runner.token) == 404
    assert refused(server, f"{runner.slug}/jobs/not-a-uuid", runner.token) == 404
    assert refused(server, f"{runner.slug}/jobs/{uuid}", runner.token) == 403
    poll(server, runner)
    assert refused(server, f"other/jobs/{uuid}", other.token) == 403
    with job_socket(server, runner, uuid) as line:
        line.ask("running")
        line.ask("completed", results=[])
    assert refused(server, f"{runner.slug}/jobs/{uuid}", runner.token) == 409


# --- Limits -----------------------------------------------------------------------------------------------------------


LIMITS = {"RUNNER_CONNECTS_PER_DAY": "3", "RESPONSE_STALL_SECONDS": "1", "STREAM_STALL_SECONDS": "0.5"}


@pytest.fixture(scope="module")
def strict_server(database_url, tmp_path_factory):
    """A server with few connections a day and little patience for clients that do not read."""
    with serving(tmp_path_factory.mktemp("strict"), **environment(database_url, **LIMITS)) as found:
        yield found


def test_connections_and_claims_of_a_runner_are_limited_together(strict_server, spec, runner):
    other = new_runner(spec, slug="other")
    with channel(strict_server, runner) as line:
        for _ in range(3):
            assert line.ask("ready", poll_timeout=1) == {"event": "no_job"}, "polls of a channel do not count"
    for _ in range(2):
        assert poll(strict_server, runner).status_code == 200, "a long poll counts once, however often it attempts"
    assert refused(strict_server, f"{runner.slug}/channel", runner.token) == 429
    assert refused(strict_server, f"{runner.slug}/jobs/{uuid4()}", runner.token) == 429
    response = poll(strict_server, runner)
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert poll(strict_server, other).status_code == 200


def test_a_thousand_beats_a_second_cost_no_memory_and_no_order(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        before = memory_kilobytes(server)
        for _ in range(1000):
            line.send("heartbeat")
        line.send("ready")
        replies = [line.receive() for _ in range(1001)]
        assert replies == [{"event": "ack", "job": uuid}] * 1001
        assert memory_kilobytes(server) - before < 30_000
        assert line.ask("completed", job=uuid, results=[])["event"] == "ack"


def test_a_runner_that_never_reads_costs_no_memory(strict_server, spec, runner):
    """Its acknowledgements fill the buffers of both ends. Then nothing more is received."""
    job = order(spec)
    with channel(strict_server, runner) as line:
        executing(line, job)
        before = memory_kilobytes(strict_server)
        raw = line.socket.socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        frame = b"\x81\x91" + b"\0\0\0\0" + b'{"event":"ready"}'
        raw.settimeout(SECONDS)
        with contextlib.suppress(OSError):
            for _ in range(200):
                raw.sendall(frame * 10_000)
        assert memory_kilobytes(strict_server) - before < 60_000
    assert status(job) == "running"


def memory_kilobytes(server):
    """The memory of the server's process that is resident now."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


# --- Time, and the ends of connections, processes and leases ----------------------------------------------------------


SHORT_TIMEOUT = {"RUNNER_HEARTBEAT_TIMEOUT_SECONDS": "8"}


@pytest.fixture
def short_timeout(settings):
    """The timeout of jobs that this process submits. A server has it by its environment."""
    settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS = 8
    return SHORT_TIMEOUT


@pytest.fixture(scope="module")
def impatient_server(database_url, tmp_path_factory):
    """A server with the short timeout."""
    with serving(tmp_path_factory.mktemp("impatient"), **environment(database_url, **SHORT_TIMEOUT)) as found:
        yield found


NOISES = {
    "silence": lambda line: None,
    "pings": lambda line: line.socket.ping(),
    "garbage": lambda line: line.socket.send("x"),
    "an object": lambda line: line.socket.send("{}"),
    "ready": lambda line: line.send("ready"),
    "bytes": lambda line: line.socket.send(b"binary"),
}


@pytest.mark.usefixtures("short_timeout")
def test_silence_is_written_before_the_close_frame(impatient_server, spec, runner):
    """Only messages about the job are heartbeats. Each channel makes another noise."""
    jobs = {noise: order(spec) for noise in NOISES}
    with contextlib.ExitStack() as stack:
        lines, began = {}, {}
        for noise in NOISES:  # one after the other: an idle channel is closed after the same time
            began[noise] = time.monotonic()
            lines[noise] = stack.enter_context(channel(impatient_server, runner))
            executing(lines[noise], jobs[noise])
        expiries = dict(Lease.objects.values_list("job_id", "expires_at"))
        until, closes = time.monotonic() + SECONDS, {}
        while lines:
            assert time.monotonic() < until
            for noise, line in list(lines.items()):
                if (close := after(line, NOISES[noise])) is not None:
                    assert status(jobs[noise]) == "failed", noise
                    assert time.monotonic() - began[noise] >= 7.5, noise
                    closes[noise] = (close.code, close.reason)
                    del lines[noise]
    assert closes == dict.fromkeys(NOISES, (1000, '"heartbeat_timeout"'))
    assert dict(Lease.objects.values_list("job_id", "expires_at")) == expiries, "nothing was renewed"


def after(line, send):
    """Send noise and read for a while. Returns the Close frame once it has arrived."""
    with contextlib.suppress(TimeoutError):
        try:
            send(line)
            line.socket.recv(0.1)
        except ConnectionClosed as closed:
            return closed.rcvd
    return None


@pytest.mark.usefixtures("short_timeout")
def test_silence_on_the_socket_of_a_job_closes_with_1008(impatient_server, spec, runner):
    job = order(spec)
    uuid = poll(impatient_server, runner).json()["uuid"]
    with job_socket(impatient_server, runner, uuid) as line:
        line.ask("running")
        found = line.end()
        assert (found.code, found.reason) == (1008, '"heartbeat_timeout"')
    assert status(job) == "failed"


@pytest.mark.usefixtures("short_timeout")
def test_silence_while_idle_drops_the_connection(impatient_server, runner):
    with channel(impatient_server, runner) as line:
        assert line.end() is None


@pytest.mark.usefixtures("short_timeout")
def test_beats_above_the_time_limit_are_answered_with_cancel(impatient_server, settings, spec, runner):
    settings.RUNNER_TIMEOUT_GRACE_SECONDS = 1
    job = order(spec, timeout=5)
    with channel(impatient_server, runner) as line:
        executing(line, job)
        began, replies = time.monotonic(), []
        while "cancel" not in replies:
            assert time.monotonic() - began < SECONDS
            replies.append(line.ask("heartbeat")["event"])
            time.sleep(0.2)
        assert status(job) == "canceled"
        assert set(replies[:-1]) == {"ack"}


def test_a_result_survives_a_lost_connection_and_a_lost_lease(server, spec, runner):
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
    Lease.objects.update(expires_at=Lease.objects.get().leased_at)
    expiry.expire(job_ulid=job.job_ulid)
    assert status(job) == "failed"
    with channel(server, runner) as line:
        assert line.ask("completed", job=uuid, results=RESULTS) == {"event": "ack", "job": uuid}
        assert status(job) == "processed"


def test_a_restart_of_the_database_drops_no_channel(server, spec, runner):
    """All connections of the server end, as they do in a restart."""
    job = order(spec)
    with channel(server, runner) as line:
        uuid = executing(line, job)
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        assert line.ask("heartbeat") == {"event": "ack", "job": uuid}
        assert line.ask("completed", job=uuid, results=RESULTS)["event"] == "ack"
    assert status(job) == "processed"


def test_a_key_appears_in_no_log(server, spec, runner):
    with channel(server, runner):
        pass
    poll(server, runner)
    refused(server, f"{runner.slug}/channel", runner.token[:-1] + "0")
    eventually(lambda: "/v0/runners/{runner}/channel 101" in server.log())
    assert runner.token not in server.log()
    assert runner.slug not in server.log(), "paths are logged as routes"
