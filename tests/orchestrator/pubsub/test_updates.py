"""Announcements of jobs that changed: after the commit, few however many changes, and received by the listener."""

import asyncio
import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from orchestrator.pubsub import announcer as announcer_module
from orchestrator.pubsub import job_updates
from orchestrator.pubsub.announcer import Announcer
from orchestrator.pubsub.followed_jobs import keep_followed
from orchestrator.pubsub.job_updates import CHANNEL, IDS_PER_PAYLOAD, announcer, parse_job_ids, send_job_ids
from orchestrator.pubsub.listener import Listener
from orchestrator.pubsub.log_hub import in_reader_thread
from orchestrator.services import cancellation, heartbeat, job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.models import FollowedJob, Job
from tests.factories import ALICE, WorkerFactory, claimed, submitted
from tests.live_server import eventually


class Sent:
    """Takes what an announcer sends; `let` holds the first one back until it is set."""

    def __init__(self):
        self.payloads, self.let, self.trouble = [], threading.Event(), []

    def __call__(self, job_ids):
        assert self.let.wait(20)
        if self.trouble:
            raise self.trouble.pop()
        self.payloads.append(job_ids)


@pytest.fixture
def sent():
    return Sent()


def announcing(send):
    return Announcer("test", send, interval=0)


def test_many_changes_are_few_announcements(sent):
    one = announcing(sent)
    one.announce(["a"])
    eventually(lambda: not one._pending)
    for _ in range(100):
        one.announce(["b", "c"])
    one.announce([])
    sent.let.set()
    eventually(lambda: sent.payloads == [["a"], ["b", "c"]])


def test_a_payload_fits_into_a_notification(monkeypatch):
    sent = []
    monkeypatch.setattr(job_updates, "notify_followers", lambda channel, job_ids: sent.append((channel, job_ids)))
    names = [f"rtj_{number:026}" for number in range(2 * IDS_PER_PAYLOAD + 1)]
    assert len(",".join(names[:IDS_PER_PAYLOAD])) < 8000
    send_job_ids(names)
    assert {channel for channel, _ in sent} == {CHANNEL}
    assert [len(job_ids) for _, job_ids in sent] == [IDS_PER_PAYLOAD, IDS_PER_PAYLOAD, 1]
    assert [name for _, job_ids in sent for name in job_ids] == names


@pytest.mark.django_db(transaction=True)
def test_only_jobs_that_are_followed_are_announced():
    with psycopg.connect(**connection_parameters(), autocommit=True) as session:
        session.execute(f'LISTEN "{CHANNEL}"')
        send_job_ids(["rtj_a", "rtj_b"])
        keep_followed(["rtj_b", "rtj_c", "rtj_old"])
        FollowedJob.objects.filter(job_ulid="rtj_old").update(until=timezone.now() - timedelta(minutes=2))
        send_job_ids(["rtj_a", "rtj_old"])
        send_job_ids(["rtj_a", "rtj_b", "rtj_c", "rtj_old"])
        (notice,) = session.notifies(timeout=5, stop_after=1)
        assert sorted(parse_job_ids(notice.payload)) == ["rtj_b", "rtj_c"]
        assert list(session.notifies(timeout=0)) == []
    keep_followed(["rtj_b"])
    assert set(FollowedJob.objects.values_list("job_ulid", flat=True)) == {"rtj_b", "rtj_c"}, "old entries are removed"


def connection_parameters():
    parameters = connection.get_connection_params()
    return {name: parameters[name] for name in ("host", "port", "user", "password", "dbname") if parameters.get(name)}


def test_trouble_loses_an_announcement_and_not_the_announcer(sent):
    sent.let.set()
    sent.trouble = [OperationalError()]
    one = announcing(sent)
    one.announce(["a"])
    eventually(lambda: not sent.trouble)
    one.announce(["b"])
    eventually(lambda: sent.payloads == [["b"]])


def test_what_waits_to_be_announced_is_bounded(sent, monkeypatch):
    monkeypatch.setattr(announcer_module, "MAX_PENDING", 3)
    one = announcing(sent)
    one.announce(["first"])
    eventually(lambda: not one._pending)
    one.announce(map(str, range(10)))
    assert len(one._pending) == 3
    sent.let.set()


def test_a_process_that_ends_sends_the_last_announcement_and_waits_no_longer(sent):
    one = announcing(sent)
    one.flush(0)  # nothing was ever announced
    one.announce(["a"])
    one.flush(0)  # the database does not answer
    assert sent.payloads == []
    sent.let.set()
    one.announce(["b"])
    one.flush(20)
    assert [job_id for job_ids in sent.payloads for job_id in job_ids] == ["a", "b"]


def test_no_thread_is_no_error(sent, monkeypatch):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    one = announcing(sent)
    with monkeypatch.context() as no_threads:
        no_threads.setattr(threading.Thread, "start", start)
        one.announce(["a"])
    sent.let.set()
    one.announce(["b"])
    one.flush(20)
    assert sent.payloads == [["b"]]


@pytest.fixture
def announced(monkeypatch):
    found = []
    monkeypatch.setattr(announcer, "announce", found.extend)
    return found


@pytest.mark.django_db
def test_a_chunk_and_an_end_are_announced_and_nothing_else(announced):
    worker = WorkerFactory()
    submitted()
    lease = claimed(worker, acknowledge=True).lease
    say = {"lease_ulid": lease.lease_ulid, "worker": worker}
    heartbeat.renew(**say)
    assert announced == []
    for _ in range(2):
        job_log_writes.append_log(**say, seq=0, chunk=b"x")
    assert announced == [lease.job_id], "the second time nothing was stored"
    job_end.fail(**say, reason="worker_error")
    assert announced == [lease.job_id] * 2
    waiting = submitted()
    cancellation.cancel(job_ulid=waiting.job_ulid, actor=ALICE, deadline_seconds=30, message="")
    assert announced[2:] == [waiting.job_ulid]
    assert Job.objects.get(pk=waiting.pk).is_final


@pytest.mark.django_db(transaction=True)
def test_the_listening_connection_of_a_process_receives_them():
    async def story():
        alive, received = asyncio.Event(), asyncio.Queue()
        listener = Listener({CHANNEL: lambda payload, _: received.put_nowait(payload)}, on_status=lambda _: alive.set())
        task = asyncio.create_task(listener.run())
        try:
            async with asyncio.timeout(20):
                await alive.wait()
                await in_reader_thread(keep_followed, ["rtj_a", "rtj_b"])
                announcer.announce(["rtj_a", "rtj_b", "rtj_c"])
                assert sorted(parse_job_ids(await received.get())) == ["rtj_a", "rtj_b"]
        finally:
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(story())
