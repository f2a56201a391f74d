"""The events of a job by positions: every byte once, also after a reconnect, for late chunks, and across objects."""

import itertools
import json
import re

import pytest
from django.core.files.storage import storages
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.services import job_end
from orchestrator.step_logs import job_log_events, job_log_writes
from orchestrator.step_logs.finalizing import finalize_step_log
from orchestrator.step_logs.job_log_events import START, JobLogEvents, position_of
from runtime_jobs.models import JobStep, LogChunk
from runtime_jobs.states import StepStatus
from tests.factories import WorkerFactory, claimed, submitted
from tests.orchestrator.step_logs.logs import append, end, new_steps

pytestmark = pytest.mark.django_db
EVENT = re.compile(r"id: (.*)\nevent: (.*)\ndata: (.*)\n\n")


@pytest.fixture(autouse=True)
def storage(settings, tmp_path):
    artifacts = settings.STORAGES["artifacts"] | {"OPTIONS": {"location": str(tmp_path)}}
    settings.STORAGES = settings.STORAGES | {"artifacts": artifacts}
    return storages["artifacts"]


class Client:
    """Reads the events of a job, as a browser does; `reconnect` continues after the last id."""

    def __init__(self, job_id, position=START):
        self.job_id, self.position, self.events, self.ended = job_id, position, [], False

    def read(self):
        while not self.ended:
            batch = JobLogEvents().read(self.job_id, self.position)
            text = batch.data.decode()
            found = EVENT.findall(text)
            assert "".join(f"id: {one}\nevent: {two}\ndata: {three}\n\n" for one, two, three in found) == text
            self.events += [(name, json.loads(data), key) for key, name, data in found]
            self.ended = batch.ended
            if batch.position == self.position:
                break
            self.position = batch.position
        return self

    def reconnect(self):
        self.position = position_of(self.job_id, self.events[-1][2])
        return self

    def text(self, step):
        parts = [data for name, data, _ in self.events if name == "chunk" and data["step"] == step]
        offset = 0
        for part in parts:
            assert part["offset"] == offset
            offset += len(part["text"].encode())
        return "".join(part["text"] for part in parts)

    def names(self):
        return [name if name != "step" else f"{data['step']} {data['status']}" for name, data, _ in self.events]


def start(step):
    JobStep.objects.filter(pk=step.pk).update(status=StepStatus.RUNNING, started_at=timezone.now())


def test_the_events_of_a_job_with_steps():
    first, second = new_steps(2)
    client = Client(first.job_id)
    assert client.read().events == []
    start(first)
    append(first, 0, b"one\n")
    assert client.read().names() == ["0 running", "chunk"]
    append(first, 1, b"two\n")
    end(first, timezone.now())
    append(second, 0, b"data: \r\n\n</script>\xe2\x80\xa8")
    assert client.read().names() == ["0 running", "chunk", "chunk", "0 completed", "chunk"]
    assert (client.text(0), client.text(1)) == ("one\ntwo\n", "data: \r\n\n</script>\u2028")
    shown = client.events[3][1]
    assert (shown["step"], shown["id"], shown["conclusion"]) == (0, first.pk, "success")
    assert client.events[-1][2].startswith("1-1."), "the first step needs no place of its own"


def test_a_late_chunk_of_an_earlier_step_is_not_missed():
    first, second = new_steps(2)
    client = Client(first.job_id)
    append(first, 0, b"first")
    append(second, 0, b"second")
    client.read()
    append(first, 1, b" more")
    end(first, timezone.now())
    append(first, 2, b" late")
    client.read()
    assert (client.text(0), client.text(1)) == ("first more late", "second")
    end(second, timezone.now())
    append(first, 3, b" very late")
    client.read().reconnect().read()
    assert client.text(0) == "first more late very late"


def test_after_each_event_a_new_connection_continues_without_gap_or_repetition():
    steps = new_steps(3)
    whole = Client(steps[0].job_id)
    for number, step in enumerate(steps):
        start(step)
        whole.read()
        for seq in range(3):
            append(step, seq, f"{number}.{seq}\n".encode())
            whole.read()
        if number < 2:
            end(step, timezone.now())
            whole.read()
        if number == 1:
            append(steps[0], 3, b"late\n")
            whole.read()
            finalize_step_log(steps[0].pk)
    for place, (_, _, key) in enumerate(whole.events):
        again = Client(steps[0].job_id, position_of(steps[0].job_id, key))
        again.read()
        for number in range(3):
            before = "".join(d["text"] for n, d, _ in whole.events[: place + 1] if n == "chunk" and d["step"] == number)
            after = "".join(d["text"] for n, d, _ in again.events if n == "chunk" and d["step"] == number)
            assert before + after == whole.text(number)
        done = [d["status"] for n, d, _ in whole.events[: place + 1] if n == "step" and d["status"] == "completed"]
        assert (
            done + [d["status"] for n, d, _ in again.events if n == "step" and d["status"] == "completed"]
            == ["completed"] * 2
        )


def test_an_object_in_the_place_of_rows_changes_nothing():
    (step,) = new_steps(1)
    client = Client(step.job_id)
    append(step, 0, b"a" * 100)
    client.read()
    append(step, 1, b"b" * 100)
    end(step, timezone.now())
    finalize_step_log(step.pk)
    assert not LogChunk.objects.exists()
    client.read()
    assert client.text(0) == "a" * 100 + "b" * 100
    assert Client(step.job_id).read().text(0) == client.text(0)


@given(st.text(min_size=1, max_size=30), st.lists(st.integers(0, 90), max_size=6))
def test_no_character_is_split(text, cuts):
    data = text.encode("utf-8", "replace")
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, after in itertools.pairwise(borders):
        missing = job_log_events._unfinished_character(data[:after])
        data[: after - missing].decode()
        assert missing <= 3
        assert begin <= after


def test_characters_over_several_chunks_are_whole():
    (step,) = new_steps(1)
    client = Client(step.job_id)
    text = "ä€😀" * 3
    for seq, byte in enumerate(text.encode() + b"\xff\xf0\x9f"):
        append(step, seq, bytes([byte]))
        client.read()
    assert "\ufffd" not in client.text(0)[: len(text)]
    end(step, timezone.now())
    client.read()
    assert "".join(d["text"] for n, d, _ in client.events if n == "chunk") == text + "\ufffd\ufffd"


def test_a_long_log_is_read_in_bounded_batches():
    (step,) = new_steps(1)
    for seq in range(5):
        append(step, seq, b"x" * 60_000)
    position, sizes = START, []
    while (batch := JobLogEvents().read(step.job_id, position)).data:
        sizes.append(len(batch.data))
        position = batch.position
    assert max(sizes) < 2 * job_log_events.PART_BYTES
    assert 5 <= len(sizes) <= 6


def test_the_end_is_the_last_event_also_for_a_job_without_steps():
    submitted()
    claim = claimed(WorkerFactory())
    job_log_writes.append_log(
        lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, seq=0, chunk=b"text", step=1
    )
    client = Client(claim.job.job_ulid).read()
    assert (client.text(1), client.ended) == ("text", False)
    job_end.fail(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, reason="worker_error", exit_code=7)
    client.read()
    assert (client.names(), client.ended) == (["chunk", "end"], True)
    assert client.events[-1][1] == {"status": "failed", "state": "failed", "exit_code": 7}
    client.ended = False
    assert client.reconnect().read().names() == ["chunk", "end", "end"]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "-1",
        "x",
        "0-",
        "9",
        "1",
        "0-0.99999.0",
        "0-7.1.0",
        "0-0.1.2",
        "0-0.1.0-0.2.0",
        "0-1.1.0-0.1.0",
        "9" * 10,
        "0" + "-0.1.0" * 2000,
        "0-0.-1.0",
        "٣",
        "0-0.1.3",
        "None\n",
    ],
)
def test_an_id_that_is_not_of_this_job_begins_at_the_start(given):
    first, second = new_steps(2)
    append(first, 0, b"text")
    append(second, 0, b"more")
    assert position_of(first.job_id, given) == START


def test_a_job_that_was_deleted_has_ended():
    client = Client("rtj_" + "0" * 26).read()
    assert (client.names(), client.ended) == (["end"], True)


def test_a_read_is_few_queries_however_many_steps():
    steps = new_steps(30)
    for step in steps:
        append(step, 0, b"x")
    with CaptureQueriesContext(connection) as queries:
        batch = JobLogEvents().read(steps[0].job_id, START)
    assert len(queries) <= 1 + 30
    append(steps[7], 1, b"y")
    with CaptureQueriesContext(connection) as queries:
        JobLogEvents().read(steps[0].job_id, batch.position)
    assert len(queries) == 2
