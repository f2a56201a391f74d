"""One waiting request around a scripted Django: when it attempts, what its client receives, and no attempt after that."""

import asyncio
import json

import pytest

from orchestrator.http.asgi.long_poll import (
    ATTEMPT,
    LONG_POLLS,
    POLL_TIMEOUT,
    WAIT_SECONDS,
    LongPollMiddleware,
    NothingToClaim,
    PollTerms,
    poll_terms,
)
from orchestrator.pubsub.hub import NotificationHub
from orchestrator.pubsub.waiters import OfferKey

OFFER = OfferKey("pool", "1")
EMPTY = "empty"  # an attempt that finds no work, in an API that answers 200 then


class Entry:
    """A test double of an access log entry."""

    def __init__(self):
        self.recorded = []

    def record(self, status, *, is_routine=False):
        self.recorded.append((status, is_routine))


class QuietHub(NotificationHub):
    """A process without a listener: the test notifies it. `notified_pools` are the notifications for other processes."""

    def __init__(self, at_once=5):
        super().__init__()
        self.attempts = asyncio.Semaphore(at_once)
        self.notified_pools = []
        self.notify_other_processes = self.notified_pools.append

    async def start(self):
        pass


class Scene:
    """`answers`: the status of each attempt; a future is awaited first. `attempts` counts them."""

    def __init__(self, *answers, at_once=5):
        self.answers, self.attempts = list(answers), 0
        self.hub = QuietHub(at_once)
        self.waiters = self.hub.waiters
        self.entry = Entry()
        self.application = LongPollMiddleware(self.django, self.hub)

    async def django(self, scope, receive, send):
        self.attempts += 1
        assert json.loads((await receive())["body"])["wait_seconds"]
        status = self.answers.pop(0)
        if isinstance(status, asyncio.Future):
            status = await status
        attempt = scope[ATTEMPT]
        attempt.entry = self.entry
        if status in (204, EMPTY) and attempt.asks_for_wait():
            attempt.offer = OFFER
        if status == EMPTY:
            attempt.is_empty, status = True, 200
        attempt.should_keep_waiting(None, status)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": str(status).encode()})

    def visit(self, seconds=60):
        return Visit(self, {"wait_seconds": seconds})


class Visit:
    """A client. `answer()` returns what it receives, `disconnect()` disconnects it."""

    def __init__(self, scene, body):
        self.sent, self.disconnected = [], asyncio.get_running_loop().create_future()
        self.messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        scope = {"type": "http", "method": "POST", "path": "/v1/runtime/leases"}
        self.task = asyncio.create_task(scene.application(scope, self.receive, self.send))

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.disconnected
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    def disconnect(self):
        self.disconnected.set_result(None)

    async def answer(self):
        await asyncio.wait_for(self.task, 10)
        return self.sent[0]["status"] if self.sent else None


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_notification_causes_an_attempt_and_the_first_work_is_sent():
    async def story():
        scene = Scene(204, 204, 201)
        visit = scene.visit()
        await settled()
        assert (scene.attempts, len(scene.waiters), visit.sent) == (1, 1, [])
        scene.waiters.notify_pool("pool")
        await settled()
        assert (scene.attempts, len(scene.waiters)) == (2, 1)
        scene.waiters.notify_pool("pool")
        assert await visit.answer() == 201
        assert [message["type"] for message in visit.sent] == ["http.response.start", "http.response.body"]

    asyncio.run(story())


def test_an_empty_response_may_have_the_status_200():
    async def story():
        scene = Scene(EMPTY, EMPTY, 200)
        visit = scene.visit()
        await settled()
        assert (scene.attempts, visit.sent) == (1, [])
        scene.waiters.notify_pool("pool")
        await settled()
        assert (scene.attempts, visit.sent) == (2, [])
        scene.waiters.notify_pool("pool")
        assert await visit.answer() == 200
        assert scene.attempts == 3
        assert scene.hub.notified_pools == ["pool"], "only work leads to more work"

    asyncio.run(story())


def test_an_empty_response_with_status_200_is_sent_when_the_time_is_up():
    async def story():
        scene = Scene(EMPTY)
        assert await scene.visit(seconds=0.05).answer() == 200
        assert (scene.attempts, scene.entry.recorded) == (1, [(200, True)])

    asyncio.run(story())


@pytest.mark.parametrize("status", [201, 400, 401, 409, 503])
def test_any_other_response_ends_the_poll_at_the_first_attempt(status):
    async def story():
        scene = Scene(status)
        assert await scene.visit().answer() == status
        assert scene.attempts == 1

    asyncio.run(story())


def test_an_unavailable_database_does_not_end_a_wait():
    async def story():
        scene = Scene(204, 503, 503, 201)
        visit = scene.visit()
        for _ in range(3):
            await settled()
            assert not visit.task.done()
            scene.waiters.notify_pool("pool")
        assert await visit.answer() == 201

    asyncio.run(story())


def test_a_revoked_token_ends_the_poll():
    async def story():
        scene = Scene(204, 401)
        visit = scene.visit()
        await settled()
        scene.waiters.notify_pool("pool")
        assert await visit.answer() == 401

    asyncio.run(story())


def test_the_last_response_is_sent_and_logged_once_when_the_time_is_up():
    async def story():
        scene = Scene(204)
        visit = scene.visit(seconds=0.05)
        assert await visit.answer() == 204
        assert scene.attempts == 1
        assert visit.sent[1]["body"] == b"204"
        assert scene.entry.recorded == [(204, True)]

    asyncio.run(story())


def test_the_end_of_the_process_ends_all_waits():
    async def story():
        scene = Scene(204, 204)
        visit = scene.visit()
        await settled()
        scene.waiters.close()
        assert await visit.answer() == 204
        late = scene.visit()
        assert await late.answer() == 204
        assert scene.attempts == 2

    asyncio.run(story())


def test_a_client_that_disconnects_causes_no_attempt_and_one_log_entry():
    async def story():
        scene = Scene(204)
        visit = scene.visit()
        await settled()
        visit.disconnect()
        assert await visit.answer() is None
        scene.waiters.notify_pool("pool")
        await settled()
        assert (scene.attempts, scene.entry.recorded) == (1, [(499, False)])

    asyncio.run(story())


def test_a_client_that_disconnects_while_queued_gets_no_lease_and_another_attempts():
    async def story():
        first = asyncio.get_running_loop().create_future()
        scene = Scene(204, 204, first, 201, at_once=1)
        waiting = [scene.visit() for _ in range(2)]
        await settled()
        slow = scene.visit()
        await settled()  # it attempts, and no other request may meanwhile
        scene.waiters.notify_pool("pool")
        await settled()
        assert len(scene.waiters) == 1, "one is woken and queued"
        gone, other = waiting  # the oldest is woken first
        gone.disconnect()
        await settled()
        first.set_result(409)
        assert await slow.answer() == 409
        assert await gone.answer() is None
        assert await other.answer() == 201

    asyncio.run(story())


def test_the_number_of_simultaneous_attempts_is_limited():
    async def story():
        held = [asyncio.get_running_loop().create_future() for _ in range(6)]
        scene = Scene(*held, at_once=2)
        visits = [scene.visit() for _ in range(6)]
        for done in range(6):
            await settled()
            assert scene.attempts == min(6, done + 2)
            held[done].set_result(409)
        assert [await visit.answer() for visit in visits] == [409] * 6

    asyncio.run(story())


def test_work_wakes_others_and_other_processes_if_no_waiter_is_left():
    async def story():
        scene = Scene(204, 204, 201, 201)
        visits = [scene.visit() for _ in range(2)]
        await settled()
        scene.waiters.notify_pool("pool")
        assert [await visit.answer() for visit in visits] == [201, 201]
        assert scene.hub.notified_pools == ["pool"]

    asyncio.run(story())


def test_an_empty_attempt_wakes_another_waiter():
    async def story():
        scene = Scene(204, 204, 204, 201, 204)
        visits = [scene.visit() for _ in range(2)]
        await settled()
        scene.waiters.notify_pool("pool")
        assert await visits[1].answer() == 201
        assert not visits[0].task.done()
        scene.waiters.close()
        await visits[0].answer()

    asyncio.run(story())


def test_a_notification_during_an_attempt_causes_another_one():
    async def story():
        held = asyncio.get_running_loop().create_future()
        scene = Scene(held, 201)
        visit = scene.visit()
        await settled()
        scene.waiters.notify_pool("pool")  # the attempt began before, so it may have missed the work
        held.set_result(204)
        assert await visit.answer() == 201

    asyncio.run(story())


def test_a_canceled_poll_leaves_no_waiter():
    async def story():
        scene = Scene(204)
        visit = scene.visit()
        await settled()
        visit.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit.task
        assert (len(scene.waiters), scene.entry.recorded) == (0, [(499, False)])

    asyncio.run(story())


@pytest.mark.parametrize("seconds", [0, -1, "x", None, [], {}, float("nan"), False], ids=repr)
def test_a_claim_without_a_valid_wait_is_passed_on_once(seconds):
    async def story():
        scene, seen = Scene(), []

        async def django(scope, receive, send):
            seen.append(json.loads((await receive())["body"])["wait_seconds"])
            attempt = scope[ATTEMPT]
            attempt.mark_nothing_to_claim(NothingToClaim(b"", offer=OFFER))
            assert not attempt.should_keep_waiting(Entry(), 204)
            await send({"type": "http.response.start", "status": 204, "headers": []})

        scene.application.inner = django
        assert await Visit(scene, {"wait_seconds": seconds}).answer() == 204
        assert (repr(seen), len(scene.waiters)) == (repr([seconds]), 0)

    asyncio.run(story())


def test_a_claim_without_the_member_is_passed_on_as_any_other_request():
    async def story():
        scene, seen = Scene(), []

        async def django(scope, receive, send):
            seen.append((ATTEMPT in scope, json.loads((await receive())["body"])))
            await send({"type": "http.response.start", "status": 204, "headers": []})

        scene.application.inner = django
        assert await Visit(scene, {"job_types": ["steps"]}).answer() == 204
        assert seen == [(False, {"job_types": ["steps"]})]

    asyncio.run(story())


@pytest.mark.parametrize(("status", "parsed"), [(401, 0), (403, 0), (201, 0), (204, 1), (EMPTY, 1)])
def test_the_body_is_parsed_only_after_a_worker_was_answered_that_there_is_no_work(monkeypatch, status, parsed):
    """Whoever has no token could otherwise take the event loop's time with bodies of 64 KiB."""
    bodies, parse = [], PollTerms.parse
    monkeypatch.setattr(PollTerms, "parse", lambda terms, body: bodies.append(body) or parse(terms, body))

    async def story():
        await Scene(status).visit(seconds=0.01).answer()

    asyncio.run(story())
    assert len(bodies) == parsed


def test_a_wait_has_a_limit(monkeypatch):
    monkeypatch.setitem(LONG_POLLS, "/v1/runtime/leases", PollTerms("wait_seconds", 0.0, 0.02))

    async def story():
        assert await Scene(204).visit(seconds=1e300).answer() == 204

    asyncio.run(story())


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (b"", 30),
        (b"{}", 30),
        (b'{"poll_timeout": null}', 30),
        (b'{"poll_timeout": 1}', 1),
        (b'{"poll_timeout": 5000}', 900),
        (b'{"poll_timeout": 0}', 0),
        (b'{"poll_timeout": "x"}', 0),
        (b'{"poll_timeout": 1', 30),
    ],
)
def test_terms_have_a_default_and_a_limit(body, seconds):
    assert POLL_TIMEOUT.seconds(POLL_TIMEOUT.parse(body)) == seconds


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/runtime/leases", WAIT_SECONDS),
        ("GET", "/v1/runtime/leases", None),
        ("POST", "/v1/runtime/leases/x", None),
    ],
)
def test_terms_are_found_by_the_path(method, path, expected):
    assert poll_terms(method, path) is expected
