"""One waiting request around a scripted Django: when it attempts, what its client receives, and no attempt after that."""

import asyncio
import json

import pytest

from orchestrator.http.asgi import long_poll
from orchestrator.http.asgi.long_poll import LongPollMiddleware
from orchestrator.http.asgi.poll_attempt import LOOK
from orchestrator.notifications.hub import NotificationHub

KIND = ("pool", 1)


class Lines:
    """In the place of a line of the access log."""

    def __init__(self):
        self.told = []
        self.tell = self.told.append


class Quiet(NotificationHub):
    """A process without a listener: the test notifies it. `calls` are the notifications for other processes."""

    def __init__(self, at_once=5):
        super().__init__()
        self.looks = asyncio.Semaphore(at_once)
        self.calls = []
        self.call_elsewhere = self.calls.append

    async def start(self):
        pass


class Scene:
    """`answers`: what Django says at each look; a future is waited for first. `looks` counts them."""

    def __init__(self, *answers, at_once=5):
        self.answers, self.looks = list(answers), 0
        self.waking = Quiet(at_once)
        self.room = self.waking.room
        self.lines = Lines()
        self.application = LongPollMiddleware(self.django, self.waking)

    async def django(self, scope, receive, send):
        self.looks += 1
        assert json.loads((await receive())["body"])["wait_seconds"]
        status = self.answers.pop(0)
        if isinstance(status, asyncio.Future):
            status = await status
        look = scope[LOOK]
        look.line = self.lines
        if status == 204:
            look.kind = KIND
        look.weigh(None, status)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": str(status).encode()})

    def visit(self, seconds=60):
        return Visit(self, {"wait_seconds": seconds})


class Visit:
    """A client. `answer()` returns what it receives, `go()` disconnects it."""

    def __init__(self, scene, body):
        self.sent, self.gone = [], asyncio.get_running_loop().create_future()
        self.messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        scope = {"type": "http", "method": "POST", "path": "/v1/runtime/leases"}
        self.task = asyncio.create_task(scene.application(scope, self.receive, self.send))

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.gone
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    def go(self):
        self.gone.set_result(None)

    async def answer(self):
        await asyncio.wait_for(self.task, 10)
        return self.sent[0]["status"] if self.sent else None


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def test_it_looks_when_it_is_called_and_hears_the_first_answer_that_says_something():
    async def story():
        scene = Scene(204, 204, 201)
        visit = scene.visit()
        await settled()
        assert (scene.looks, len(scene.room), visit.sent) == (1, 1, [])
        scene.room.call("pool")
        await settled()
        assert (scene.looks, len(scene.room)) == (2, 1)
        scene.room.call("pool")
        assert await visit.answer() == 201
        assert [message["type"] for message in visit.sent] == ["http.response.start", "http.response.body"]

    asyncio.run(story())


@pytest.mark.parametrize("status", [201, 400, 401, 409, 503])
def test_any_answer_but_nothing_ends_it_at_the_first_look(status):
    async def story():
        scene = Scene(status)
        assert await scene.visit().answer() == status
        assert scene.looks == 1

    asyncio.run(story())


def test_a_database_that_goes_away_while_it_waits_does_not_end_it():
    async def story():
        scene = Scene(204, 503, 503, 201)
        visit = scene.visit()
        for _ in range(3):
            await settled()
            assert not visit.task.done()
            scene.room.call("pool")
        assert await visit.answer() == 201

    asyncio.run(story())


def test_a_token_that_counts_no_more_ends_it():
    async def story():
        scene = Scene(204, 401)
        visit = scene.visit()
        await settled()
        scene.room.call("pool")
        assert await visit.answer() == 401

    asyncio.run(story())


def test_when_its_time_is_up_it_hears_what_the_last_look_said_and_it_is_told_once():
    async def story():
        scene = Scene(204)
        visit = scene.visit(seconds=0.05)
        assert await visit.answer() == 204
        assert scene.looks == 1
        assert visit.sent[1]["body"] == b"204"
        assert scene.lines.told == [204]

    asyncio.run(story())


def test_when_the_process_ends_it_goes_home_at_once():
    async def story():
        scene = Scene(204, 204)
        visit = scene.visit()
        await settled()
        scene.room.close()
        assert await visit.answer() == 204
        late = scene.visit()
        assert await late.answer() == 204
        assert scene.looks == 2

    asyncio.run(story())


def test_who_has_gone_looks_no_more_and_is_told_of_once():
    async def story():
        scene = Scene(204)
        visit = scene.visit()
        await settled()
        visit.go()
        assert await visit.answer() is None
        scene.room.call("pool")
        await settled()
        assert (scene.looks, scene.lines.told) == (1, [499])

    asyncio.run(story())


def test_who_goes_while_standing_in_line_gets_no_lease_and_another_looks_in_his_place():
    async def story():
        first = asyncio.get_running_loop().create_future()
        scene = Scene(204, 204, first, 201, at_once=1)
        waiting = [scene.visit() for _ in range(2)]
        await settled()
        slow = scene.visit()
        await settled()  # it attempts, and no other request may meanwhile
        scene.room.call("pool")
        await settled()
        assert len(scene.room) == 1, "one is called, and stands in line"
        gone, other = waiting  # who came first is called first
        gone.go()
        await settled()
        first.set_result(409)
        assert await slow.answer() == 409
        assert await gone.answer() is None
        assert await other.answer() == 201

    asyncio.run(story())


def test_so_many_look_at_a_time_and_no_more():
    async def story():
        held = [asyncio.get_running_loop().create_future() for _ in range(6)]
        scene = Scene(*held, at_once=2)
        visits = [scene.visit() for _ in range(6)]
        for done in range(6):
            await settled()
            assert scene.looks == min(6, done + 2)
            held[done].set_result(409)
        assert [await visit.answer() for visit in visits] == [409] * 6

    asyncio.run(story())


def test_who_found_work_sends_others_to_look_and_where_nobody_is_left_other_processes():
    async def story():
        scene = Scene(204, 204, 201, 201)
        visits = [scene.visit() for _ in range(2)]
        await settled()
        scene.room.call("pool")
        assert [await visit.answer() for visit in visits] == [201, 201]
        assert scene.waking.calls == ["pool"]

    asyncio.run(story())


def test_who_found_nothing_lets_another_one_try():
    async def story():
        scene = Scene(204, 204, 204, 201, 204)
        visits = [scene.visit() for _ in range(2)]
        await settled()
        scene.room.call("pool")
        assert await visits[1].answer() == 201
        assert not visits[0].task.done()
        scene.room.close()
        await visits[0].answer()

    asyncio.run(story())


def test_what_is_called_while_it_looks_is_looked_for():
    async def story():
        held = asyncio.get_running_loop().create_future()
        scene = Scene(held, 201)
        visit = scene.visit()
        await settled()
        scene.room.call("pool")  # its look began before, so it may not have seen the work
        held.set_result(204)
        assert await visit.answer() == 201

    asyncio.run(story())


def test_a_server_that_cuts_it_off_leaves_nobody_in_the_room():
    async def story():
        scene = Scene(204)
        visit = scene.visit()
        await settled()
        visit.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit.task
        assert (len(scene.room), scene.lines.told) == (0, [499])

    asyncio.run(story())


@pytest.mark.parametrize("seconds", [0, -1, "x", None, [], {}, float("nan"), False], ids=repr)
def test_what_is_no_time_to_wait_is_looked_for_once_and_outside_the_room(seconds):
    async def story():
        scene, seen = Scene(), []

        async def django(scope, receive, send):
            seen.append((LOOK in scope, json.loads((await receive())["body"])["wait_seconds"]))
            await send({"type": "http.response.start", "status": 204, "headers": []})

        scene.application.inner = django
        assert await Visit(scene, {"wait_seconds": seconds}).answer() == 204
        assert repr(seen) == repr([(False, seconds)])

    asyncio.run(story())


def test_nobody_waits_longer_than_a_minute(monkeypatch):
    monkeypatch.setattr(long_poll, "MAX_SECONDS", 0.02)

    async def story():
        assert await Scene(204).visit(seconds=1e300).answer() == 204

    asyncio.run(story())
