"""The arithmetic of the scenarios of events and of document 004; nothing here is timed."""

import asyncio
import subprocess
from types import SimpleNamespace

import pytest

from benchmarks import core_cost, document_004, load, streams
from benchmarks.clients import paced
from benchmarks.event_listeners import EventListener, Received
from benchmarks.histogram import Tally

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nd\r\nretry: 3000\n\n\r\n"
)
SNAPSHOT = b'1f\r\nid: a\nevent: snapshot\ndata: {"measuredAt":"x"}\n\n\r\n'
PING = b"9\r\n: ping\nid: a\n\n\r\n"
GAP = b'1f\r\nid: b\nevent: gap\ndata: {"reason":"too_slow"}\n\n\r\n'


def envelope(second):
    text = f'id: b\ndata: {{"eventId":"1","timestamp":"2026-11-23T09:00:{second:02}.500000Z","tenant":"a"}}\n\n'
    return b"5a\r\n" + text.encode() + b"\r\n"


def listened(parts, *, counts_only=False):
    """Return what a listener has received, and whether it has begun."""

    async def run():
        received = Received(counts_only=counts_only)
        listener = EventListener("127.0.0.1:1", "/", "token", received)
        for part in parts:
            listener.data_received(part)
        return received, listener.begun.done()

    return asyncio.run(run())


def test_a_listener_has_begun_with_the_snapshot_and_counts_events_only():
    assert listened([HEAD])[1] is False
    received, has_begun = listened([HEAD, SNAPSHOT, PING])
    assert (has_begun, received.events, received.gaps) == (True, 0, 0)
    received, _ = listened([HEAD, SNAPSHOT, envelope(1), envelope(2), GAP])
    assert (received.events, received.gaps, len(received.delays)) == (2, 1, 2)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_frames_are_found_however_their_bytes_arrive(size):
    data = HEAD + SNAPSHOT + envelope(1) + PING + envelope(2)
    received, _ = listened(data[at : at + size] for at in range(0, len(data), size))
    assert received.events == 2


def test_a_delay_is_counted_from_the_timestamp_of_the_envelope():
    received = Received(counts_only=False)
    received.add(envelope(7), at=1795424407.75)  # 2026-11-23 09:00:07.75 UTC
    assert received.delays == [0.25]


def test_chunks_of_a_log_are_counted_without_a_timestamp():
    received, has_begun = listened([HEAD, b'id: 0\nevent: chunk\ndata: {"text":"1"}\n\n'], counts_only=True)
    assert (has_begun, received.events) == (True, 1)


def test_a_listener_that_is_refused_says_why():
    async def run():
        listener = EventListener("127.0.0.1:1", "/", "token", Received(counts_only=True))
        listener.data_received(b"HTTP/1.1 429 Too Many Requests\r\n\r\n")
        listener.connection_lost(None)
        await listener.begun

    with pytest.raises(ConnectionError, match="429"):
        asyncio.run(run())


def test_the_cost_is_compared_within_each_pair_of_turns():
    turns = [
        {"is_listened": is_listened, "lifecycles_per_s": rate}
        for is_listened, rate in [(False, 100.0), (True, 90.0), (True, 40.0), (False, 50.0), (False, 10.0), (True, 5.0)]
    ]
    assert streams.cost_of(turns) == 0.8


def test_scheduling_is_counted_from_the_submit_to_the_lease_of_any_client():
    facts = {
        "submitted": {"a": 10.0, "b": 11.0, "never leased": 12.0},
        "leased": {"b": 11.5, "a": 10.25, "earlier": 9.0},
    }
    assert document_004.scheduling_seconds(facts) == [0.25, 0.5]


def test_each_client_submits_for_one_of_several_tenants():
    plan = load.LoadPlan(
        "lifecycles", "127.0.0.1", 1, 3, 1.0, workers=[("w", "t")] * 3, tokens=["a", "b"], bodies=[1, 2]
    )
    clients = [load._client(plan, number, Tally(0, 1)) for number in range(3)]
    assert [(client.tenant.token, client.bodies) for client in clients] == [("a", [1]), ("b", [2]), ("a", [1])]


class Worker:
    """Answers each claim with the job that was submitted last."""

    def __init__(self):
        self.jobs, self.completed = [], 0

    async def submit(self, body):
        self.jobs.append(f"job-{len(self.jobs)}")
        return self.jobs[-1]

    async def claim(self, *, wait_seconds):
        return {"lease_id": "lease", "job": {"job_id": self.jobs[-1]}}

    async def report(self, operation, lease_id, body):
        self.completed += operation == "complete"


def test_a_paced_load_begins_lifecycles_at_its_rate():
    worker, tally = Worker(), Tally.of(warmup=0.0, seconds=0.3)
    tally.facts |= {"clients": 1, "every": 0.1, "submitted": {}, "leased": {}, "claims": []}
    asyncio.run(paced(SimpleNamespace(number=0, tenant=worker, worker=worker, bodies=[{}], tally=tally)))
    assert worker.completed == len(worker.jobs) <= 3, "one each tenth of a second, and none after the end"
    assert set(tally.facts["submitted"]) == set(tally.facts["leased"]) == set(worker.jobs)


def test_the_commit_before_document_004_is_taken_from_the_repository(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    (repository / "file").write_text("text")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "one"], check=True)
    monkeypatch.setattr(core_cost, "BASE_DIR", repository)
    folder = core_cost.extracted("HEAD", tmp_path)
    assert folder is not None
    assert (folder / "file").read_text() == "text"
    assert core_cost.extracted("a7dc11d", tmp_path) is None


def test_without_that_commit_there_is_no_figure(monkeypatch):
    monkeypatch.delenv("BASELINE", raising=False)
    monkeypatch.setattr(core_cost, "extracted", lambda *_: None)
    assert core_cost.measure(SimpleNamespace(state=None), None, {})["core_cost"].keys() == {"missing"}
