"""The driver of WebSocket sessions around a scripted session: frames, timers, operations, slow and lost clients."""

import asyncio
import threading
import time

import pytest

from orchestrator.http.asgi import sockets
from orchestrator.http.asgi.sockets import CloseSocket, DropSocket, OpenSockets, SendText, SocketDriver


class Operation:
    """An effect that is an operation."""


class Script:
    """A session: `on` maps the names of inputs to functions of the input's value that return effects."""

    kind, phase = "script", "open"

    def __init__(self, **on):
        self.on, self.inputs, self.deadline, self.is_busy = on, [], None, False

    @property
    def accepts_frames(self):
        return not self.is_busy

    def _input(self, name, value=None):
        self.inputs.append((name, value) if value is not None else name)
        return self.on.get(name, lambda _: ())(value)

    def parse(self, text):
        self.parsed_in = threading.current_thread()
        return text

    def receive(self, text, now):
        return self._input("text", text)

    def receive_bytes(self, now):
        return self._input("bytes")

    def receive_control(self, now):
        return self._input("control")

    def advance(self, now):
        assert now >= self.deadline
        self.deadline = None
        return self._input("time")

    def resolve(self, result, now):
        self.is_busy = False
        return self._input("result", result)

    def fail_operation(self, now):
        self.is_busy = False
        return self._input("failure")

    def end_connection(self):
        return self._input("end")

    def shut_down(self):
        return self._input("shutdown")


class Client:
    """The other end: `queue` has its messages, `sent` what it received."""

    def __init__(self, session, perform=None):
        self.queue, self.sent, self.reads = asyncio.Queue(), [], 0
        self.can_read = asyncio.Event()
        self.can_read.set()
        self.ended = None
        self.operations = []
        self.task = asyncio.create_task(
            SocketDriver(session, perform or self.perform, {}, self.receive, self.send).run()
        )

    async def perform(self, operation, ended):
        self.operations.append(operation)
        self.ended = ended
        return await operation

    async def receive(self):
        message = await self.queue.get()
        self.reads += 1
        return message

    async def send(self, message):
        await self.can_read.wait()
        self.sent.append(message)

    def text(self, text):
        self.queue.put_nowait({"type": "websocket.receive", "text": text})

    def disconnect(self):
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})


async def settled():
    for _ in range(300):
        await asyncio.sleep(0)


def run(story):
    asyncio.run(asyncio.wait_for(story(), 30))


def test_frames_are_given_to_the_session_and_effects_are_sent():
    async def story():
        session = Script(text=lambda text: [SendText(text.upper())])
        client = Client(session)
        client.text("a")
        client.queue.put_nowait({"type": "websocket.receive", "bytes": b"x", "text": None})
        client.text("b")
        client.disconnect()
        await client.task
        assert client.sent == [{"type": "websocket.send", "text": "A"}, {"type": "websocket.send", "text": "B"}]
        assert session.inputs == [("text", "a"), "bytes", ("text", "b"), "end"]

    run(story)


@pytest.mark.parametrize(("length", "is_long"), [(65_536, False), (65_537, True)])
def test_a_long_frame_is_parsed_in_a_thread(length, is_long):
    async def story():
        session = Script(text=lambda _: [DropSocket()])
        client = Client(session)
        client.text("x" * length)
        await client.task
        assert session.inputs[0] == ("text", "x" * length)
        assert (session.parsed_in is not threading.current_thread()) == is_long

    run(story)


def test_a_close_ends_the_session_and_nothing_is_sent_after_it():
    async def story():
        client = Client(Script(text=lambda _: [SendText("1"), CloseSocket(1000, "why"), SendText("2")]))
        client.text("a")
        await client.task
        assert client.sent[1:] == [{"type": "websocket.close", "code": 1000, "reason": "why"}]

    run(story)


def test_a_drop_ends_the_session_without_a_close_frame():
    async def story():
        client = Client(Script(text=lambda _: [DropSocket()]))
        client.text("a")
        await client.task
        assert client.sent == []

    run(story)


def test_frames_wait_while_an_operation_runs():
    async def story():
        result = asyncio.get_running_loop().create_future()
        session = Script(result=lambda value: [SendText(value)])

        def begin(_):
            session.is_busy = True
            return [result]

        session.on["text"] = lambda text: begin(text) if text == "begin" else ()
        client = Client(session)
        client.text("begin")
        for number in range(10):
            client.text(str(number))
        await settled()
        assert session.inputs == [("text", "begin")]
        assert client.reads <= 2, "the others are left in the connection"
        result.set_result("done")
        await settled()
        assert session.inputs == [("text", "begin"), ("result", "done"), *(("text", str(n)) for n in range(10))]
        client.disconnect()
        await client.task

    run(story)


def test_frames_are_received_during_an_operation_that_allows_it():
    async def story():
        result = asyncio.get_running_loop().create_future()
        session = Script(text=lambda text: [result] if text == "begin" else ())
        client = Client(session)
        for text in ("begin", "during"):
            client.text(text)
        await settled()
        assert session.inputs == [("text", "begin"), ("text", "during")]
        result.set_result("done")
        client.disconnect()
        await client.task

    run(story)


def test_several_operations_run_at_once_and_each_is_awaited():
    async def story():
        loop = asyncio.get_running_loop()
        operations = {name: loop.create_future() for name in "abc"}
        session = Script(text=lambda name: [operations[name]], result=lambda value: [SendText(value)])
        client = Client(session)
        for name in operations:
            client.text(name)
        await settled()
        assert client.operations == list(operations.values())
        for name in "ba":
            operations[name].set_result(name)
            await settled()
        assert [message["text"] for message in client.sent] == ["b", "a"]
        client.disconnect()
        await settled()
        assert client.ended.done()
        assert not client.task.done(), "an operation runs"
        operations["c"].set_result("c")
        await client.task
        assert session.inputs[-2:] == ["end", ("result", "c")]
        assert len(client.sent) == 2, "nothing is sent after the end"

    run(story)


def test_a_result_that_arrives_with_the_disconnect_is_seen_after_it():
    async def story():
        result = asyncio.get_running_loop().create_future()
        session = Script(text=lambda _: [result])
        client = Client(session)
        client.text("begin")
        await settled()
        client.disconnect()
        result.set_result("job")
        await client.task
        assert session.inputs == [("text", "begin"), "end", ("result", "job")]

    run(story)


def test_an_operation_learns_of_the_end_and_its_result_still_counts():
    async def story():
        result, follow_up = (asyncio.get_running_loop().create_future() for _ in range(2))
        session = Script(text=lambda _: [result], result=lambda value: [follow_up] if value == "job" else ())
        client = Client(session)
        client.text("begin")
        await settled()
        assert not client.ended.done()
        client.disconnect()
        await settled()
        assert client.ended.done()
        result.set_result("job")
        await settled()
        assert client.operations == [result, follow_up]
        assert not client.task.done()
        follow_up.set_result("given back")
        await client.task

    run(story)


def test_an_operation_that_fails_is_reported_to_the_session(caplog):
    async def story():
        async def perform(_operation, _ended):
            raise RuntimeError("on purpose")

        session = Script(text=lambda _: [Operation()], failure=lambda _: [DropSocket()])
        client = Client(session, perform)
        client.text("begin")
        await client.task
        assert session.inputs == [("text", "begin"), "failure"]

    run(story)
    assert "on purpose" in caplog.text


def test_the_time_is_reported_at_the_deadline():
    async def story():
        session = Script(time=lambda _: [CloseSocket(1000, "late")])
        session.deadline = time.monotonic() + 0.05
        client = Client(session)
        await client.task
        assert session.inputs == ["time"]

    run(story)


def test_a_deadline_that_moves_is_used():
    async def story():
        session = Script(
            text=lambda _: setattr(session, "deadline", time.monotonic()) or (), time=lambda _: [DropSocket()]
        )
        session.deadline = time.monotonic() + 600
        client = Client(session)
        client.text("now")
        await client.task
        assert session.inputs == [("text", "now"), "time"]

    run(story)


def test_a_client_that_never_reads_is_cut_off(settings):
    settings.RESPONSE_STALL_SECONDS = 0.05

    async def story():
        session = Script(text=lambda _: [SendText("1")])
        client = Client(session)
        client.can_read.clear()
        client.text("a")
        await client.task
        assert session.inputs == [("text", "a"), "end"]

    run(story)


def test_a_client_that_is_lost_during_a_send_ends_the_session():
    async def story():
        async def send(_message):
            raise ConnectionResetError

        session = Script(text=lambda _: [SendText("1")])
        client = Client(session)
        client.task.cancel()
        await asyncio.wait({client.task})
        driver = SocketDriver(session, client.perform, {}, client.receive, send)
        client.text("a")
        await driver.run()
        assert session.inputs == [("text", "a"), "end"]

    run(story)


@pytest.fixture
def own_registry(monkeypatch):
    found = OpenSockets()
    monkeypatch.setattr(sockets, "open_sockets", found)
    return found


def test_a_shutdown_ends_all_sessions_and_later_ones(own_registry):
    async def story():
        def script():
            return Script(shutdown=lambda _: [CloseSocket(1001, "bye")])

        clients = [Client(script()) for _ in range(3)]
        await settled()
        assert len(own_registry) == 3
        own_registry.stop()
        late = Client(script())
        for client in (*clients, late):
            await client.task
            assert client.sent == [{"type": "websocket.close", "code": 1001, "reason": "bye"}]
        assert len(own_registry) == 0

    run(story)


def test_a_shutdown_awaits_the_operation_that_runs(own_registry):
    async def story():
        result = asyncio.get_running_loop().create_future()
        session = Script(text=lambda _: [result], shutdown=lambda _: [CloseSocket(1001, "bye")])
        client = Client(session)
        client.text("begin")
        await settled()
        own_registry.stop()
        await settled()
        assert client.sent == [{"type": "websocket.close", "code": 1001, "reason": "bye"}]
        assert not client.task.done()
        result.set_result("written")
        await client.task
        assert session.inputs[-1] == ("result", "written")

    run(story)
