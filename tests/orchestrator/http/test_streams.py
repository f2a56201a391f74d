"""Streamed answers: how many are admitted, and what happens to a client that does not read."""

import asyncio
import gc
import socket
from types import SimpleNamespace

import pytest
from django.db import OperationalError
from django.http import StreamingHttpResponse

from orchestrator.http.asgi import streams
from orchestrator.http.asgi.http_protocol import EXTENSION, ClientConnection
from orchestrator.http.asgi.streams import CountedResponse, StreamEnd, StreamRegistry, deliver
from orchestrator.http.auth.credentials import Credential
from orchestrator.http.errors.problems import ApiError
from orchestrator.pubsub.log_hub import SourceUnavailable
from orchestrator.pubsub.metrics import ENDED

ALICE = Credential("token:1", "", "sandtrace", counts_for_organization=True)
BOB = Credential("token:2", "", "sandtrace", counts_for_organization=True)
OLGA = Credential("user:1", "session", "sandtrace", counts_for_organization=False)


@pytest.fixture
def registry(monkeypatch, settings):
    settings.STREAMS_PER_CALLER, settings.STREAMS_PER_ORGANIZATION, settings.STREAMS_PER_PROCESS = 2, 3, 5
    settings.STREAM_STALL_SECONDS = settings.STREAM_AUTH_SECONDS = settings.STREAM_MAX_SECONDS = 3600
    made = StreamRegistry()
    monkeypatch.setattr(streams, "registry", made)
    return made


def refusal(registry, credential):
    with pytest.raises(ApiError) as found:
        registry.admit(credential, "follow")
    assert int(found.value.headers["Retry-After"]) > 0
    return found.value.status, found.value.code, found.value.members.get("limited_by")


def test_each_limit_is_met_and_given_back(registry):
    mine = [registry.admit(ALICE, "follow"), registry.admit(ALICE, "read")]
    assert refusal(registry, ALICE) == (429, "too_many_streams", "caller")
    other = registry.admit(BOB, "follow")
    assert refusal(registry, BOB) == (429, "too_many_streams", "organization")
    staff = [registry.admit(OLGA, "follow"), registry.admit(OLGA, "follow")]
    stranger = Credential("token:3", "", "another", counts_for_organization=True)
    assert refusal(registry, stranger) == (503, "busy", None)
    assert (registry.number("follow"), registry.number("read")) == (4, 1)
    for stream in [*mine, other, *staff]:
        stream.close()
        stream.close()
    assert not registry._counts


def test_staff_take_no_place_of_the_organization_they_look_at(registry):
    kept = [registry.admit(OLGA, "follow") for _ in range(2)]
    assert refusal(registry, OLGA)[2] == "caller"
    kept += [registry.admit(ALICE, "follow"), registry.admit(ALICE, "follow"), registry.admit(BOB, "follow")]
    assert len(kept) == 5


def test_an_answer_that_is_never_sent_gives_its_place_back(registry):
    for _ in range(10):
        CountedResponse(short(), stream=registry.admit(ALICE, "follow"), content_type="text/plain")
        gc.collect()
    assert registry.number("follow") <= 1


class Client:
    """Takes what it is sent until `stops`; then the server's `send` waits for ever."""

    def __init__(self, stops=float("inf")):
        self.taken, self.stops, self.dropped = [], stops, False
        self.left = asyncio.get_running_loop().create_future()

    async def send(self, message):
        if len(self.taken) >= self.stops:
            await asyncio.Event().wait()
        self.taken.append(message)

    def get_extra_info(self, _name):
        return None

    def abort(self):
        self.dropped = True
        self.left.set_result({"type": "http.disconnect"})

    @property
    def scope(self):
        return {"extensions": {EXTENSION: ClientConnection(self)}}

    @property
    def has_all(self):
        return bool(self.taken) and self.taken[-1].get("more_body") is False


class ClosedSocket:
    family = socket.AF_INET

    def setsockopt(self, *_):
        raise ValueError("negative file descriptor")  # as uvloop does


def test_a_connection_that_the_client_has_closed_is_dropped_without_an_error():
    aborted = []
    transport = SimpleNamespace(get_extra_info=lambda _: ClosedSocket(), abort=lambda: aborted.append(True))
    ClientConnection(transport).drop()
    assert aborted == [True]


async def send_response(response, send):
    await send({"type": "http.response.start", "status": 200})
    async for part in response.streaming_content:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def delivered(registry, content, *, stops=float("inf"), meanwhile=None, afterwards=lambda: True):
    """Deliver to a client. Returns the client and the reason by which the stream was counted."""

    async def play():
        client = Client(stops)
        response = CountedResponse(content, stream=registry.admit(ALICE, "follow"), content_type="text/plain")
        before = {end: ENDED.labels(end)._value.get() for end in StreamEnd}
        task = asyncio.create_task(deliver(response, send_response, client.send, client.left, client.scope))
        if meanwhile:
            await asyncio.sleep(0.01)
            meanwhile(client)
        await asyncio.wait_for(task, 20)
        assert not registry._counts
        assert not registry._attached
        assert registry._checking is None
        assert afterwards()
        return client, {end for end in StreamEnd if ENDED.labels(end)._value.get() > before[end]}

    return asyncio.run(play())


async def endless():
    while True:
        yield b"x"
        await asyncio.sleep(0)


async def quiet():
    yield b"x"
    await asyncio.Event().wait()


async def short():
    yield b"x"


def test_a_whole_answer_ends_and_its_connection_stays(registry):
    client, reason = delivered(registry, short())
    assert (client.has_all, client.dropped, reason) == (True, False, {"complete"})


def test_a_client_that_takes_nothing_is_dropped(registry, settings):
    settings.STREAM_STALL_SECONDS = 0.05
    client, reason = delivered(registry, endless(), stops=3)
    assert (client.has_all, client.dropped, reason) == (False, True, {"stalled"})


def test_the_source_of_a_stalled_stream_is_closed_without_a_garbage_collection(registry, settings):
    settings.STREAM_STALL_SECONDS = 0.05
    closed = []

    async def source():
        try:
            async for part in endless():
                yield part
        finally:
            closed.append(True)

    gc.disable()
    try:
        delivered(registry, source(), stops=3, afterwards=lambda: closed == [True])
    finally:
        gc.enable()


def test_a_quiet_log_is_no_stalled_client(registry, settings):
    settings.STREAM_STALL_SECONDS, settings.STREAM_MAX_SECONDS = 0.05, 0.5
    client, reason = delivered(registry, quiet())
    assert (client.has_all, client.dropped, reason) == (False, True, {"expired"})


def test_a_client_that_leaves_is_not_dropped(registry):
    client, reason = delivered(registry, quiet(), meanwhile=lambda client: client.left.set_result(None))
    assert (client.dropped, reason) == (False, {"disconnected"})


def test_the_end_of_the_process_ends_all_streams_and_those_that_come_after_it(registry):
    client, reason = delivered(registry, quiet(), meanwhile=lambda _: registry.stop())
    assert (client.has_all, client.dropped, reason) == (False, True, {"shutdown"})

    async def later():
        stream = registry.admit(ALICE, "follow")
        other = registry.admit(BOB, "follow")
        stream.attach()
        registry.stop()
        assert other.attach().result() == "shutdown"
        registry.detach(stream), registry.detach(other)

    asyncio.run(later())


def dismissed(registry, *, stops=float("inf"), content=None, farewell=b"bye"):
    """Deliver a stream that has a last part for the end of the process, and end the process."""

    async def play():
        client = Client(stops)
        stream = registry.admit(ALICE, "dashboard")
        response = CountedResponse(content or quiet(), stream=stream, content_type="text/plain", farewell=farewell)
        task = asyncio.create_task(deliver(response, send_response, client.send, client.left, client.scope))
        await asyncio.sleep(0.01)
        registry.stop()
        await asyncio.wait_for(task, 20)
        assert not registry._counts
        return client

    return asyncio.run(play())


def test_the_end_of_the_process_is_announced_where_a_stream_has_words_for_it(registry):
    client = dismissed(registry)
    assert [message.get("body") for message in client.taken[-2:]] == [b"bye", b""]
    assert client.has_all
    assert not client.dropped


def test_a_client_that_does_not_take_the_last_part_is_dropped(registry, monkeypatch):
    monkeypatch.setattr(streams, "FAREWELL_SECONDS", 0.05)
    client = dismissed(registry, stops=2)
    assert not client.has_all
    assert client.dropped


def test_a_log_that_cannot_be_read_is_cut_off_without_a_traceback(registry):
    async def breaks():
        yield b"x"
        raise SourceUnavailable

    client, reason = delivered(registry, breaks())
    assert (client.has_all, client.dropped, reason) == (False, True, {"failed"})


def test_a_bug_is_no_end_of_a_stream(registry):
    async def breaks():
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        delivered(registry, breaks())
    assert not registry._counts


def test_a_database_that_is_away_at_a_re_check_revokes_nothing(registry, settings, monkeypatch):
    settings.STREAM_AUTH_SECONDS = 0.001
    answers = [{ALICE}, OperationalError(), set(), set()]

    async def asked(_function, credentials):
        assert credentials == {ALICE}
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(streams, "in_reader_thread", asked)
    _, reason = delivered(registry, quiet())
    assert (answers, reason) == ([], {"revoked"})


def test_a_file_is_no_counted_stream_but_its_client_is_dropped_too(settings, registry):
    settings.STREAM_STALL_SECONDS = 0.05

    async def play():
        client = Client(stops=2)
        response = StreamingHttpResponse(endless())
        await asyncio.wait_for(deliver(response, send_response, client.send, client.left, client.scope), 20)
        return client

    assert asyncio.run(play()).dropped


def test_a_known_token_above_its_limit_is_refused_without_a_view(registry):
    header = "Bearer rto_api_alice"
    assert registry.early_refusal(header.encode()) is None, "an unknown token is left to the view"
    mine = [registry.admit(ALICE, "follow", authorization=header) for _ in range(2)]
    refused = registry.early_refusal(header.encode())
    assert (refused.status, refused.code, refused.members["limited_by"]) == (429, "too_many_streams", "caller")
    assert registry.early_refusal(b"Bearer rto_api_other") is None
    mine[0].close()
    assert registry.early_refusal(header.encode()) is None, "there is a free place"
    mine[1].close()


def test_an_abandoned_stream_causes_no_early_refusal(registry):
    header = "Bearer rto_api_alice"
    streams_of_alice = [registry.admit(ALICE, "follow", authorization=header) for _ in range(2)]
    assert registry.early_refusal(header.encode())
    streams_of_alice.pop()  # dropped without `close`
    assert registry.early_refusal(header.encode()) is None
    streams_of_alice.pop().close()


def test_a_token_is_known_for_some_seconds_only(registry, monkeypatch):
    header = "Bearer rto_api_alice"
    kept = [registry.admit(ALICE, "follow", authorization=header) for _ in range(2)]
    now = streams.time.monotonic()
    monkeypatch.setattr(streams.time, "monotonic", lambda: now + streams.EARLY_REFUSAL_SECONDS + 1)
    assert registry.early_refusal(header.encode()) is None, "the view checks whether it has been revoked"
    for stream in kept:
        stream.close()


def test_the_number_of_known_tokens_is_limited(registry, monkeypatch):
    monkeypatch.setattr(streams, "REMEMBERED_TOKENS", 10)
    for number in range(100):
        registry.admit(ALICE, "follow", authorization=f"Bearer {number}").close()
    assert len(registry._token_credentials) == 10


def test_only_logs_are_refused_early(registry):
    kept = [registry.admit(ALICE, "follow", authorization="Bearer x") for _ in range(2)]
    logs = {"method": "GET", "path": "/v1/jobs/rtj_x/logs", "headers": [(b"authorization", b"Bearer x")]}
    assert streams.early_stream_refusal(logs).code == "too_many_streams"
    assert streams.early_stream_refusal(logs | {"method": "POST"}) is None
    assert streams.early_stream_refusal(logs | {"path": "/v1/jobs/rtj_x"}) is None
    assert streams.early_stream_refusal(logs | {"headers": []}) is None
    assert streams.early_stream_refusal(logs | {"path": "/api/dashboard/events"}).code == "too_many_streams"
    for stream in kept:
        stream.close()
