"""Operations of a session: results are read within a limit, and a lost database is waited for."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from leases.errors import WorkerLocked
from orchestrator.http.asgi.client_identity import ClientIdentities
from orchestrator.http.asgi.thread_pools import ThreadPool
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.channel import endpoints
from orchestrator.protocols.bencher.channel.claims import RunnerClaim
from orchestrator.protocols.bencher.channel.endpoints import RunnerSockets, _Performer
from orchestrator.protocols.bencher.channel.operations import FinalOutcome
from orchestrator.protocols.bencher.channel.session import Expire, LeasedJob, Reply
from tests.live_server import eventually

JOB = SimpleNamespace(job_ulid="rtj_1", org_slug="org")
WORKER = SimpleNamespace(worker_id="wrk_1", pk=1)


def run(story):
    asyncio.run(asyncio.wait_for(story(), 30))


def sockets():
    return RunnerSockets(ThreadPool("test", threads=2, queue=2), ClientIdentities())


def unread(**changes):
    return FinalOutcome(Reply.ACK, JOB, b"output", **changes)


def test_a_claim_whose_runner_is_locked_follows_by_itself(monkeypatch):
    """The answers of a group are sent together: one that waited for a lock would delay all others."""
    found = RunnerClaim(("pool",), None, {})
    monkeypatch.setattr(endpoints, "claim_for_runner", lambda worker: [found, worker])

    async def story():
        shared = sockets()
        monkeypatch.setattr(shared.claims, "_answer", lambda workers: [WorkerLocked() for _ in workers])
        assert await _Performer(shared, WORKER)._attempt_claim(WORKER) == [found, WORKER]

    run(story)


def test_a_result_is_read_before_the_acknowledgement(monkeypatch):
    read = []
    monkeypatch.setattr(endpoints, "_process", lambda job, output: read.append((job, output)))

    async def story():
        await sockets().read_result(unread(), seconds=20)
        assert read == [(JOB, b"output")]

    run(story)


def test_a_result_that_takes_long_is_acknowledged_before_and_read_nevertheless(monkeypatch):
    may_end, read = threading.Event(), []

    def process(job, _output):
        assert may_end.wait(20)
        read.append(job)

    monkeypatch.setattr(endpoints, "_process", process)

    async def story():
        await sockets().read_result(unread(), seconds=0.05)
        assert read == []
        may_end.set()
        assert await asyncio.to_thread(eventually, lambda: read) == [JOB]

    run(story)


def test_a_result_that_cannot_be_read_now_is_acknowledged(monkeypatch, caplog):
    def process(_job, _output):
        raise OSError("the store is down")

    monkeypatch.setattr(endpoints, "_process", process)
    run(lambda: sockets().read_result(unread(), seconds=20))
    assert "the store is down" in caplog.text


@pytest.mark.parametrize(("is_stored", "reads"), [(True, 0), (False, 1)])
def test_too_many_results_are_left_in_the_store(monkeypatch, is_stored, reads):
    read = []
    monkeypatch.setattr(endpoints, "_process", lambda job, _output: read.append(job))

    async def story():
        found = sockets()
        monkeypatch.setattr(found.result_threads, "is_full", lambda: True)
        await found.read_result(unread(is_stored=is_stored), seconds=20)
        assert len(read) == reads

    run(story)


def test_an_outcome_without_a_new_result_reads_nothing():
    run(lambda: sockets().read_result(FinalOutcome(Reply.ACK), seconds=20))


def performing(monkeypatch, *outcomes):
    """Performs one Expire. `outcomes`: results of its attempts."""
    remaining = list(outcomes)

    def expire(_job):
        outcome = remaining.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(endpoints.operations, "expire", expire)
    monkeypatch.setattr(endpoints, "DATABASE_PAUSE_SECONDS", 0.01)
    return lambda ended: _Performer(sockets(), WORKER).perform(Expire(LeasedJob(uuid=None)), ended)


def test_an_operation_waits_for_a_lost_database(monkeypatch):
    async def story():
        perform = performing(monkeypatch, OperationalError(), OperationalError(), Reply.ACK)
        assert await perform(asyncio.get_running_loop().create_future()) is Reply.ACK

    run(story)


def test_an_operation_of_a_lost_connection_does_not_wait(monkeypatch):
    async def story():
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        with pytest.raises(OperationalError):
            await performing(monkeypatch, OperationalError(), Reply.ACK)(ended)

    run(story)


def test_an_operation_waits_no_longer_than_the_lease(monkeypatch, settings):
    settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS = 0

    async def story():
        with pytest.raises(OperationalError):
            await performing(monkeypatch, OperationalError(), OperationalError(), Reply.ACK)(
                asyncio.get_running_loop().create_future()
            )

    run(story)


def handshake(scheme, *headers):
    return {
        "type": "websocket",
        "path": "/v0/runners/rack-7/channel",
        "path_params": {"runner": "rack-7"},
        "query_string": b"",
        "scheme": scheme,
        "headers": [(b"host", b"localhost"), *headers],
        "client": ("192.0.2.1", 1),
        "server": ("127.0.0.1", 80),
        "subprotocols": ["bearer.x"],
    }


@pytest.mark.parametrize(
    ("scope", "is_refused"),
    [
        (handshake("ws"), True),
        (handshake("ws", (b"x-forwarded-proto", b"https")), False),
        (handshake("ws", (b"x-forwarded-proto", b"http")), True),
        (handshake("wss"), False),
    ],
)
def test_a_key_in_plain_text_is_refused_where_https_is_required(monkeypatch, settings, scope, is_refused):
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    seen = []
    monkeypatch.setattr(endpoints, "authenticate_runner", lambda header, runner, network: seen.append(header) or WORKER)
    monkeypatch.setattr(endpoints, "register_connect", lambda _: None)
    if is_refused:
        with pytest.raises(ApiError, match="wss"):
            endpoints._authenticate(scope)
        assert seen == []
    else:
        assert endpoints._authenticate(scope) is WORKER
        assert seen == [None], "a subprotocol is no key on the channel"
