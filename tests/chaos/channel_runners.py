"""Runners that take jobs over the channel of the Bencher protocol, written after contract 3.9 and not Bencher's code.

A runner has one connection. It claims, reports `running`, sends heartbeats, and reads at most one frame at each
heartbeat. If the connection breaks, it executes without one, connects again, and sends its result until it is
acknowledged. A runner that is killed forgets its job.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

POLL_SECONDS = 5
ANSWER_SECONDS = 5.0  # for an acknowledgement; then the result is sent again
CONNECT_SECONDS = 10.0
HEARTBEAT_SECONDS = 0.5
RECONNECT_SECONDS = (0.3, 1.5)
EXECUTION_SECONDS = (0.1, 2.5)
LONG_SECONDS = 65.0  # an execution that is billed two minutes
LONG, FAILED = 0.02, 0.15  # shares of executions
SENDS_OF_A_CONNECTION = 2
MAX_SENDS = 12  # of one result; the real runner sends it five times
EXIT_CODE = 7

Message = dict[str, Any]


class ChannelLost(Exception):
    """The connection cannot be used any more, so the runner connects again."""


@dataclass
class FinalMessage:
    """The last message about a job.

    Attributes:
        job: The UUID of the job.
        event: `completed`, `failed` or `canceled`.
        value: The value of the only metric, which no other result has; None without one.
        acknowledged_at: The time of its acknowledgement.
    """

    job: str
    event: str
    value: float | None = None
    sends: int = 0
    acknowledged_at: datetime | None = None

    def members(self) -> Message:
        if self.event == "canceled":
            return {"job": self.job}
        if self.event == "failed":
            results = [{"exit_code": EXIT_CODE, "stderr": "chaos"}]
            return {"job": self.job, "results": results, "error": "The benchmark has failed."}
        output = json.dumps({"chaos": {"latency": {"value": self.value}}})
        return {"job": self.job, "results": [{"exit_code": 0, "stdout": output}]}


@dataclass
class RunnerLedger:
    """The jobs that the runners received, and the results that were acknowledged.

    Attributes:
        received: The number of times that a job was sent to a runner, by its UUID.
        acknowledged: The acknowledged final messages.
        counts: Connections and what became of results.
        wrong: Messages that no fault excuses.
    """

    received: Counter[str] = field(default_factory=Counter)
    acknowledged: list[FinalMessage] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class ChannelRunner:
    """One process of a runner. `last_message_at` is on the monotonic clock."""

    def __init__(self, url: str, slug: str, key: str, ledger: RunnerLedger, chance: Random, *, long: bool) -> None:
        self._url = f"{url.replace('http', 'ws', 1)}/v0/runners/{slug}/channel"
        self._key, self._ledger, self._chance, self._long = key, ledger, chance, long
        self._socket: ClientConnection | None = None
        self._unanswered = 0  # messages of this connection whose replies were not read
        self._result: FinalMessage | None = None
        self.last_message_at = 0.0

    async def run(self) -> None:
        """Connect again and again, until the task is canceled."""
        while True:
            try:
                await self._connect()
            except InvalidStatus as refusal:
                if refusal.response.status_code != 503:
                    self._ledger.wrong.append(f"a handshake was refused: {refusal}")
            except (OSError, WebSocketException, ChannelLost):
                pass  # the network, or the server
            await asyncio.sleep(self._chance.uniform(*RECONNECT_SECONDS))

    async def _connect(self) -> None:
        async with connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._key}"},
            compression=None,
            ping_interval=None,
            max_size=None,
            proxy=None,
            open_timeout=CONNECT_SECONDS,
            close_timeout=1,
        ) as self._socket:
            self._ledger.counts["connections"] += 1
            self._unanswered = 0
            await self._serve()

    def break_connection(self) -> None:
        """End the connection as the end of a process does: without a Close frame."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def _serve(self) -> None:
        while True:
            if self._result is not None:
                await self._deliver(self._result)
            elif (job := await self._poll()) is not None:
                self._result = await self._execute(job)

    # --- Claim --------------------------------------------------------------------------------------------------------

    async def _poll(self) -> Message | None:
        await self._send("ready", poll_timeout=POLL_SECONDS)
        message = await self._receive(POLL_SECONDS + 30)
        while message["event"] == "ack":  # of a result that was sent twice
            message = await self._receive(POLL_SECONDS + 30)
        if message["event"] == "no_job":
            return None
        if message["event"] != "job":
            raise self._wrong("instead of a job", message)
        if missing := {"uuid", "spec", "config", "oci_token", "timeout", "created"} - message.keys():
            raise self._wrong(f"a job without {sorted(missing)}", message)
        self._ledger.received[message["uuid"]] += 1
        return message

    # --- Execution ----------------------------------------------------------------------------------------------------

    async def _execute(self, job: Message) -> FinalMessage:
        """Execute a job. Without a connection the execution continues."""
        await self._send_counted("running")  # if that fails, the job is forgotten
        uuid = job["uuid"]
        seconds = LONG_SECONDS if self._long and self._chance.random() < LONG else None
        until = time.monotonic() + (seconds or self._chance.uniform(*EXECUTION_SECONDS))
        is_connected = True
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(HEARTBEAT_SECONDS, left))
            try:
                if is_connected and await self._beat(uuid):
                    return FinalMessage(uuid, "canceled")
            except (OSError, WebSocketException):
                is_connected = False
        if self._chance.random() < FAILED:
            return FinalMessage(uuid, "failed")
        return FinalMessage(uuid, "completed", value=round(self._chance.uniform(1, 1e6), 6))

    async def _beat(self, uuid: str) -> bool:
        """Send a heartbeat and read at most one frame. Returns whether the job was canceled."""
        await self._send_counted("heartbeat")
        try:
            message = await self._receive(0.01)
        except TimeoutError:
            return False
        return self._count_reply(message, uuid)

    def _count_reply(self, message: Message, uuid: str) -> bool:
        """Count a reply to a message about the job. Returns whether the job was canceled."""
        if message == {"event": "cancel"}:
            self._unanswered = 0  # the server ignores heartbeats from here on
            return True
        if message != {"event": "ack", "job": uuid}:
            raise self._wrong("instead of a reply", message)
        self._unanswered -= 1
        return False

    # --- Result -------------------------------------------------------------------------------------------------------

    async def _deliver(self, result: FinalMessage) -> None:
        """Send a result until it is acknowledged. Raises ChannelLost after too long."""
        for _ in range(SENDS_OF_A_CONNECTION):
            if result.sends == MAX_SENDS:
                self._result = None
                self._ledger.counts["results dropped"] += 1
                return
            result.sends += 1
            await self._send(result.event, **result.members())
            try:
                await self._read_acknowledgement(result)
            except TimeoutError:
                continue
            result.acknowledged_at = datetime.now(UTC)
            self._ledger.acknowledged.append(result)
            self._ledger.counts["results sent again"] += result.sends > 1
            self._result = None
            return
        raise ChannelLost

    async def _read_acknowledgement(self, result: FinalMessage) -> None:
        """Read the replies to earlier messages, and then that to the result: a reply is not taken for another one."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while self._unanswered > 0:
                self._count_reply(await self._receive(ANSWER_SECONDS), result.job)
            message = await self._receive(ANSWER_SECONDS)
            if message == {"event": "cancel"}:  # the reply to the last heartbeat; the result follows in IDLE
                message = await self._receive(ANSWER_SECONDS)
        if message != {"event": "ack", "job": result.job}:
            raise self._wrong("instead of an acknowledgement", message)

    # --- Frames -------------------------------------------------------------------------------------------------------

    async def _send_counted(self, event: str) -> None:
        await self._send(event)
        self._unanswered += 1

    async def _send(self, event: str, **members: Any) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps({"event": event, **members}))

    async def _receive(self, seconds: float) -> Message:
        assert self._socket is not None
        async with asyncio.timeout(seconds):
            frame = await self._socket.recv()
        self.last_message_at = time.monotonic()
        message: Message = json.loads(frame)
        return message

    def _wrong(self, words: str, message: Message) -> ChannelLost:
        self._ledger.wrong.append(f"{words}: {json.dumps(message)[:200]}")
        return ChannelLost()


class RunnerFleet:
    """All channel runners of a run, in one event loop of a thread of its own."""

    def __init__(self, url: str, runners: list[tuple[str, str]], seed: int, *, long: bool) -> None:
        """Prepare.

        Args:
            url: The URL of the server, or of the network before it.
            runners: The slugs and keys.
            seed: The seed of the run.
            long: Whether some executions take longer than a minute.
        """
        self._url, self._runners, self._seed, self._long = url, runners, seed, long
        self.ledger = RunnerLedger()
        self._lives = [0] * len(runners)
        self._running: list[tuple[ChannelRunner, asyncio.Task[None]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="runners", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __len__(self) -> int:
        return len(self._runners)

    def kill(self, number: int) -> None:
        """Replace a runner by a new process of it, which knows nothing of the job before."""
        self._call(self._kill(number))

    def has_received_since(self, number: int, began: float) -> bool:
        """Return whether the runner received a message after that time of the monotonic clock."""
        return self._running[number][0].last_message_at > began

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        self._running = [self._begin(number) for number in range(len(self._runners))]

    def _begin(self, number: int) -> tuple[ChannelRunner, asyncio.Task[None]]:
        slug, key = self._runners[number]
        chance = Random(f"{self._seed}/{slug}/{self._lives[number]}")
        self._lives[number] += 1
        runner = ChannelRunner(self._url, slug, key, self.ledger, chance, long=self._long)
        return runner, asyncio.create_task(self._watched(runner))

    async def _watched(self, runner: ChannelRunner) -> None:
        try:
            await runner.run()
        except Exception as error:  # noqa: BLE001 - the report displays it
            self.ledger.wrong.append(f"a runner ended: {error!r}")

    async def _kill(self, number: int) -> None:
        await self._end(*self._running[number])
        self._running[number] = self._begin(number)

    async def _stop(self) -> None:
        await asyncio.gather(*(self._end(*running) for running in self._running))

    async def _end(self, runner: ChannelRunner, task: asyncio.Task[None]) -> None:
        runner.break_connection()
        task.cancel()
        await asyncio.wait({task}, timeout=10)
