"""Replays the frames of Bencher's real runner: the server's answers are equal in kind and order to the recorded ones.

`make runner BENCHER_RUNNER=… RECORD=…` writes the recordings; `tests/bencher_runner/proxy.py` describes their entries.
Ids and times are substituted: a poll that got `no_job` lasts one second here, and any other one as long as it takes.
"""

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as websocket

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.protocols.bencher.channel.messages import parse_channel_frame
from orchestrator.protocols.bencher.states import job_status
from orchestrator.services import cancellation, expiry, runners
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from tests.bencher_runner.installation import unknown_key
from tests.bencher_runner.proxy import REDACTED, UNKNOWN_KEY
from tests.bencher_runner.stories import NAMES
from tests.factories import ALICE, OPERATOR
from tests.live_server import Server, eventually, serving
from tests.orchestrator.protocols.bencher.channel.scene import new_runner, new_spec, order, row
from workers.models import HardwareSpec, Worker

RECORDED = Path(__file__).parent / "recorded"
SECONDS = 30  # for an answer, on a machine under load
# Members of the claimed job that differ between two installations. Their type and place do not.
VOLATILE = {"uuid", "created", "modified", "oci_token", "registry", "project", "digest", "image"}
# Members of the job of a run that have another name in the specification of the job.
ATTRIBUTES = {"iter": "iterations"}
OF_EVERY_ACTION = {"at", "from", "action"}

Entry = dict[str, Any]


def read(name: str) -> tuple[Entry, list[Entry]]:
    """The header and the entries of a recording."""
    header, *entries = (json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines())
    return header, entries


class Servers:
    """The server of the replay, which a recording may end: the next connection then starts another one."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder, self._environment = folder, {"DATABASE_URL": database_url}
        self._stack = contextlib.ExitStack()
        self._server: Server | None = None
        self._count = 0

    def current(self) -> Server:
        if self._server is None:
            self._count += 1
            folder = self._folder / str(self._count)
            folder.mkdir()
            self._server = self._stack.enter_context(serving(folder, **self._environment))
        return self._server

    def end(self, number: signal.Signals) -> None:
        server, self._server = self.current(), None
        server.process.send_signal(number)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def servers(database_url, tmp_path_factory) -> Iterator[Servers]:
    found = Servers(tmp_path_factory.mktemp("replay"), database_url)
    yield found
    found.close()


class Replay:
    """Sends what the runner sent, does what the harness did, and compares what the server answers."""

    def __init__(self, servers: Servers, entries: list[Entry]) -> None:
        self.servers, self.entries = servers, entries
        self.specs: dict[str, HardwareSpec] = {}
        self.runners: dict[str, Worker] = {}
        self.keys: dict[str, str] = {}
        self.jobs: list[Job] = []
        self.lines: dict[int, ClientConnection] = {}
        self.compared = 0

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            for number, entry in enumerate(self.entries):
                if entry["from"] == "harness":
                    getattr(self, entry["action"])(**{key: entry[key] for key in entry if key not in OF_EVERY_ACTION})
                elif "handshake" in entry:
                    self.connect(entry, stack)
                elif entry["connection"] in self.lines:
                    self.exchange(number, entry, self.lines[entry["connection"]])

    def connect(self, entry: Entry, stack: contextlib.ExitStack) -> None:
        """Open a connection and compare the status. One that found no server is left out."""
        status = self.status_of(entry["connection"])
        if status is None:
            return
        key = unknown_key() if entry["key"] == UNKNOWN_KEY else self.keys[entry["key"]]
        url = f"ws://127.0.0.1:{self.servers.current().address[1]}{entry['handshake']}"
        if status == 101:
            self.lines[entry["connection"]] = stack.enter_context(open_line(url, key))
        else:
            with pytest.raises(InvalidStatus, match=str(status)):
                open_line(url, key)
        self.compared += 1

    def status_of(self, connection: int) -> int | None:
        entries = (entry for entry in self.entries if entry["from"] == "server" and entry["connection"] == connection)
        return next((entry["status"] for entry in entries if "status" in entry), None)

    def exchange(self, number: int, entry: Entry, line: ClientConnection) -> None:
        """Send a frame of the runner, or compare one of the server."""
        if entry["from"] == "runner":
            if "message" in entry:
                line.send(json.dumps(self.outgoing(number, entry)))
            elif "close" in entry or "end" in entry:
                self.lines.pop(entry["connection"]).close()
        elif "message" in entry:
            received = json.loads(line.recv(SECONDS))
            assert self.comparable(received) == masked(entry["message"]), f"entry {number}"
            self.compared += 1
        elif "close" in entry or "end" in entry:
            with pytest.raises(ConnectionClosed) as closed:
                line.recv(SECONDS)
            frame = closed.value.rcvd
            assert (frame and frame.code, frame and frame.reason) == (entry.get("close"), entry.get("reason"))
            del self.lines[entry["connection"]]
            self.compared += 1

    def outgoing(self, number: int, entry: Entry) -> Entry:
        message = dict(entry["message"])
        if "job" in message:
            message["job"] = str(uuid_of(self.job(message["job"]).job_ulid))
        if message["event"] == "ready":
            message["poll_timeout"] = 1 if self.next_event(number, entry["connection"]) == "no_job" else 600
        return message

    def next_event(self, number: int, connection: int) -> str | None:
        following = self.entries[number + 1 :]
        events = (
            entry["message"]["event"]
            for entry in following
            if entry["from"] == "server" and entry["connection"] == connection and "message" in entry
        )
        return next(events, None)

    def comparable(self, message: Entry) -> Entry:
        """A message of the server with the names of jobs that the recording has."""
        names = {str(uuid_of(job.job_ulid)): f"job-{number}" for number, job in enumerate(self.jobs, 1)}
        for member in ("job", "uuid"):
            if member in message:
                message[member] = names[message[member]]
        return masked(message)

    def job(self, name: str) -> Job:
        return self.jobs[int(name.removeprefix("job-")) - 1]

    # --- What the harness did -----------------------------------------------------------------------------------------

    def spec(self, spec: str, values: dict[str, Any]) -> None:
        self.specs[spec] = new_spec(spec, **values)

    def runner(self, runner: str) -> None:
        self.runners[runner] = found = new_runner(slug=runner)
        self.keys[runner] = found.token

    def associate(self, runner: str, spec: str) -> None:
        worker_id, spec_uuid = self.runners[runner].worker_id, self.specs[spec].uuid
        runners.add_runner_spec(worker_id=worker_id, spec_uuid=spec_uuid, cause=Cause(OPERATOR))

    def rotate(self, runner: str) -> None:
        _, key = runners.rotate_runner_key(worker_id=self.runners[runner].worker_id, cause=Cause(OPERATOR))
        number = sum(name.partition("#")[0] == runner for name in self.keys) + 1
        self.keys[f"{runner}#{number}"] = key

    def archive(self, runner: str, archived: bool) -> None:
        runners.change_runner(worker_id=self.runners[runner].worker_id, archived=archived, cause=Cause(OPERATOR))

    def submit(self, job: dict[str, Any]) -> None:
        values = {ATTRIBUTES.get(name, name): value for name, value in job.items() if name != "spec"}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        self.jobs.append(order(self.specs[job["spec"]], image="demo:stories", **values))

    def cancel(self, job: str) -> None:
        cancellation.cancel(job_ulid=self.job(job).job_ulid, actor=ALICE, deadline_seconds=60)

    def status(self, job: str, status: str) -> None:
        eventually(lambda: str(job_status(row(self.job(job)))) == status)

    def silence(self, job: str) -> None:
        """The lease expires, and the scheduler process ends it."""
        lease = Lease.objects.open().get(job=self.job(job))
        Lease.objects.filter(pk=lease.pk).update(expires_at=lease.leased_at)
        expiry.expire(job_ulid=self.job(job).job_ulid)

    def stop_runner(self) -> None:
        """Its connection ends with the next entries."""

    def kill_server(self) -> None:
        self.servers.end(signal.SIGKILL)

    def restart_server(self) -> None:
        self.servers.end(signal.SIGTERM)


def open_line(url: str, key: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {key}"}
    options: dict[str, Any] = {"compression": None, "ping_interval": None, "open_timeout": SECONDS, "close_timeout": 1}
    return websocket(url, additional_headers=headers, **options)


def masked(value: Any) -> Any:
    """The value with the types of volatile members in the place of their values."""
    if not isinstance(value, dict):
        return value
    hidden = {name: type(member).__name__ for name, member in value.items() if name in VOLATILE and member is not None}
    if value.get("event") == "job":
        hidden["uuid"] = value["uuid"]
    return {name: hidden.get(name, masked(member)) for name, member in value.items()}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_story_has_the_recorded_answers(servers, name):
    _, entries = read(name)
    replay = Replay(servers, entries)
    replay.run()
    answers = [entry for entry in entries if entry["from"] == "server"]
    assert replay.compared >= len(answers) * 9 // 10 > 0, "almost every answer was compared"


def test_every_story_is_recorded_from_one_runner():
    assert sorted(path.stem for path in RECORDED.iterdir()) == sorted(NAMES)
    headers = [read(name)[0] for name in NAMES]
    assert [header["story"] for header in headers] == list(NAMES)
    (found,) = {(header["runner"], header["commit"]) for header in headers}
    assert all(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_message_of_the_runner_is_valid(name):
    job = "0190a5d4-9d3c-7bbb-8f00-00000000aaaa"
    _, entries = read(name)
    for entry in entries:
        if entry["from"] == "runner" and "message" in entry:
            message = entry["message"]
            parse_channel_frame(json.dumps(message | ({"job": job} if "job" in message else {})))


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_has_no_secret(name):
    text = (RECORDED / f"{name}.jsonl").read_text()
    assert not re.search(r"bencher_(runner|user|run)_\w{30}|eyJ\w+\.", text)
    for entry in read(name)[1]:
        if "oci_token" in entry.get("message", {}):
            assert entry["message"]["oci_token"] == REDACTED
