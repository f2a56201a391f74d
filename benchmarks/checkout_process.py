"""Measures single calls inside one checkout's own process: the script that `calls` and `compare` start.

It imports the modules of the checkout that it is started for, which may be older than this file, as far back as commit
8637103. `prepare` starts that checkout's PostgreSQL, migrates an empty database and creates tenants; then it starts
`answer`, the measured process, in the role of the API. That one reads a command a line from standard input and writes
a line of JSON for each.

The ASGI application is called without a network, one call at a time, so `process_time` is Python's alone.
"""

# ruff: noqa: PLC0415 - the modules are those of the checkout, and need its environment

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

SEED = "BENCHMARK_SEED"  # variable with the tokens, from `prepare` to `answer`
MANY = 64  # jobs of one batch call
CAPACITY = 256  # leases of one worker
COMPLETED = {"result": {"status": "succeeded", "exit_code": 0}}
EXECUTING = {"phase": "executing"}
FLOOR = "/v1/nothing"
SETTLED_WITHIN = 0.05  # seconds; a backend may be descheduled before it has finished the last statement
# Frontend messages that are a statement each, and the backend's message that ends a round trip.
STATEMENT = re.compile(r"^F\t\d+\t(?:Query|Execute)\b", re.MULTILINE)
TRIP_END = re.compile(r"^B\t\d+\tReadyForQuery\b", re.MULTILINE)

_connections: weakref.WeakSet[Any] = weakref.WeakSet()  # psycopg's, of this process


class UnexpectedAnswer(Exception):
    """Reports a call that was not answered as when all is well."""


def prepare(backlog: int, leased: int, layout: str) -> int:
    """Create the database and its rows, then run the measured process, or a server of the layout."""
    try:
        from benchmarks.environment import opened
    except ImportError:  # commit 8637103
        from benchmarks.stage import opened
    cluster = opened()
    from benchmarks import tenants

    workers = 1 + -(-leased // CAPACITY)
    tenant = tenants.settled("compare", organizations=["acme"], workers=max(workers, 16 if layout else 1))
    if backlog:
        tenants.fill("waiting", "compare", backlog)
    seed = {"token": tenant.tokens["acme"], "workers": tenant.workers, "body": tenants.body("acme"), "leased": leased}
    if layout:
        from benchmarks import servers

        with servers.serving(cluster, layout) as server:
            _write(seed | {"host": server.address.host, "port": server.address.port})
            sys.stdin.read()
        return 0
    command = [sys.executable, __file__, sys.argv[1], "answer"]
    environment = os.environ | {SEED: json.dumps(seed), "DATABASE_ROLE": "api"}
    child = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    return subprocess.run(child, env=environment, stdout=_output, check=False).returncode


class Calls:
    """Calls the application and records the cost of each call: `records` has (operation, figures) in order."""

    def __init__(self, application: Any, seed: dict[str, Any], meter: CallMeter) -> None:
        self.application, self.meter = application, meter
        self.token, self.workers, self.body = seed["token"], seed["workers"], seed["body"]
        self.has_floor = False  # this checkout has the route FLOOR
        self.next: dict[str, Any] | None = None  # the lease that a completion brought along

    async def call(
        self,
        name: str,
        path: str,
        body: Any,
        token: str,
        *,
        method: str = "POST",
        allowed: Collection[int] = frozenset({200, 201}),
    ) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": content, "more_body": False}]
        answer: dict[str, Any] = {"status": 0, "body": b""}

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()  # the client stays connected and sends nothing more
            return messages.pop()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer["status"] = message["status"]
            else:
                answer["body"] += message.get("body", b"")

        scope = _scope(method, path, token, len(content))
        with self.meter.measured(name):
            await self.application(scope, receive, send)
        if answer["status"] not in allowed:
            raise UnexpectedAnswer(f"{name}: {answer['status']} {answer['body'][:300]!r}")
        return json.loads(answer["body"] or b"null")

    async def empty(self) -> None:
        await self.call("empty", "/healthz", None, "", method="GET")

    async def floor(self) -> None:
        """Send a call that does nothing: token, thread, parsing, log and metric, but no operation."""
        if self.has_floor:
            await self.call("floor", FLOOR, {}, self.workers[0][1])
        else:  # Django's way to a path that does not exist
            await self.call("floor", FLOOR, {}, self.workers[0][1], allowed={404})

    async def submit(self) -> None:
        await self.call("submit", "/v1/jobs", self.body, self.token)

    async def claim(self, *, acknowledge: bool) -> dict[str, Any]:
        return await self.call("claim", "/v1/runtime/leases", self.offer(0, acknowledge), self.workers[0][1])

    async def lease_call(self, operation: str, lease: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        path = f"/v1/runtime/leases/{lease['lease_id']}/{operation}"
        return await self.call(operation, path, body, self.workers[0][1])

    async def claim_many(self, number: int, worker: int = 0) -> list[dict[str, Any]]:
        offer = self.offer(worker, acknowledge=True) | {"max_leases": number}
        return (await self.call("claim_many", "/v1/runtime/leases", offer, self.workers[worker][1]))["leases"]

    async def submit_many(self) -> None:
        await self._batch("submit_many", "/v1/jobs/bulk", {"jobs": [self.body] * MANY}, self.token)

    async def lease_call_many(self, operation: str, leases: list[dict[str, Any]], body: dict[str, Any]) -> None:
        entries = {"leases": [{"lease_id": lease["lease_id"], **body} for lease in leases]}
        await self._batch(f"{operation}_many", f"/v1/runtime/leases/{operation}", entries, self.workers[0][1])

    async def _batch(self, name: str, path: str, body: dict[str, Any], token: str) -> None:
        results = (await self.call(name, path, body, token))["results"]
        refused = [result for result in results if result["status"] not in {200, 201}]
        if refused:
            raise UnexpectedAnswer(f"{name}: {refused[0]}")

    def offer(self, worker: int, acknowledge: bool) -> dict[str, Any]:
        return {"worker_id": self.workers[worker][0], "job_types": ["steps"], "acknowledge": acknowledge}


async def five(calls: Calls) -> None:
    await calls.submit()
    lease = await calls.claim(acknowledge=True)
    await calls.lease_call("acknowledge", lease, {})
    await calls.lease_call("heartbeat", lease, EXECUTING)
    await calls.lease_call("complete", lease, COMPLETED)


async def three(calls: Calls) -> None:
    await calls.submit()
    lease = await calls.claim(acknowledge=False)
    await calls.lease_call("complete", lease, COMPLETED)


async def two(calls: Calls) -> None:
    """The completion of one job claims the next one. The first round of a process claims once."""
    await calls.submit()
    if calls.next is None:
        calls.next = await calls.claim(acknowledge=False)
        await calls.submit()
    body = COMPLETED | {"claim_next": calls.offer(0, acknowledge=False)}
    answer = await calls.lease_call("complete", calls.next, body)
    calls.next = answer.get("next_lease")
    if calls.next is None:
        raise UnexpectedAnswer(f"complete with claim_next: no lease in {sorted(answer)}")


async def many(calls: Calls) -> None:
    await calls.submit_many()
    leases = await calls.claim_many(MANY)
    await calls.lease_call_many("acknowledge", leases, {})
    await calls.lease_call_many("heartbeat", leases, EXECUTING)
    await calls.lease_call_many("complete", leases, COMPLETED)


SCENARIOS: dict[str, Callable[[Calls], Any]] = {scenario.__name__: scenario for scenario in (five, three, two, many)}


class CallMeter:
    """Measures calls, either their processor time or what they send to PostgreSQL; never both at once."""

    def __init__(self, observer: Any) -> None:
        self.observer = observer
        self.counts = False
        self.records: list[tuple[str, dict[str, float]]] = []

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        measure = self._counted if self.counts else self._timed
        with measure() as figures:
            yield
        self.records.append((name, figures))

    @contextlib.contextmanager
    def _timed(self) -> Iterator[dict[str, float]]:
        figures: dict[str, float] = {}
        backends = _backends()
        postgres = sum(map(_settled_seconds, backends))
        began = time.process_time()
        yield figures
        figures["python_ms"] = (time.process_time() - began) * 1000
        figures["postgres_ms"] = (sum(map(_settled_seconds, backends)) - postgres) * 1000

    @contextlib.contextmanager
    def _counted(self) -> Iterator[dict[str, float]]:
        figures: dict[str, float] = {}
        with tempfile.TemporaryFile("w+") as trace:
            for connection in list(_connections):
                if not connection.closed:
                    connection.pgconn.trace(trace.fileno())
            before = self._wal()
            try:
                yield figures
            finally:
                for connection in list(_connections):
                    if not connection.closed:
                        connection.pgconn.untrace()
            figures["wal_bytes"] = self._wal() - before
            trace.seek(0)
            figures |= trips(trace.read())

    def _wal(self) -> int:
        row = self.observer.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return int(row[0])


def trips(trace: str) -> dict[str, float]:
    """Return the number of statements and of round trips in a trace of libpq."""
    untimed = re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\t", "", trace, flags=re.MULTILINE)
    return {"statements": len(STATEMENT.findall(untimed)), "trips": len(TRIP_END.findall(untimed))}


def _backends() -> list[int]:
    return [connection.info.backend_pid for connection in list(_connections) if not connection.closed]


def _settled_seconds(pid: int) -> float:
    """Return the seconds of a backend once it sleeps: before that the kernel's figure is behind."""
    until = time.monotonic() + SETTLED_WITHIN
    while _state(pid) == "R" and time.monotonic() < until:
        time.sleep(0.0001)
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _scope(method: str, path: str, token: str, length: int) -> dict[str, Any]:
    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(length)}
    if token:
        headers["authorization"] = f"Bearer {token}"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8000),
    }


@contextlib.asynccontextmanager
async def _lifespan(application: Any) -> AsyncIterator[None]:
    """Start and stop the application as a server does; one without a lifespan is used as it is."""
    incoming: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    started, stopped = asyncio.Event(), asyncio.Event()

    async def send(message: dict[str, str]) -> None:
        (started if message["type"].startswith("lifespan.startup") else stopped).set()

    async def run() -> None:
        with contextlib.suppress(Exception):
            await application({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, incoming.get, send)
        started.set()
        stopped.set()

    task = asyncio.create_task(run())
    await incoming.put({"type": "lifespan.startup"})
    await started.wait()
    yield
    await incoming.put({"type": "lifespan.shutdown"})
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), 5)
    task.cancel()


async def answer() -> None:
    """Run the commands of standard input: a scenario, `timed` or `counted`, and the rounds."""
    import psycopg

    seed = json.loads(os.environ.pop(SEED))
    observer = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    _register_connections()
    has_floor = _add_floor()
    from config.asgi import application

    calls = Calls(application, seed, CallMeter(observer))
    calls.has_floor = has_floor
    async with _lifespan(application):
        await _lease(calls, seed["leased"])
        _write({"ready": True})
        while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            try:
                _write({"records": await _slice(calls, **command)})
            except (UnexpectedAnswer, KeyError) as error:
                _write({"error": f"{type(error).__name__}: {error}"[:500]})


def _add_floor() -> bool:
    """Add a call of the fast path that does nothing. Return whether this checkout has a fast path."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup(set_prefix=False)
    try:
        from orchestrator.http.api.calls import ApiAnswer
        from orchestrator.http.auth.permissions import IsWorker
        from orchestrator.http.fast_path import FastRoute
        from orchestrator.protocols.native import fast_routes
    except ImportError:
        return False
    fast_routes.ROUTES += (FastRoute(FLOOR, lambda _: ApiAnswer({}), IsWorker()),)
    return True


async def _slice(calls: Calls, scenario: str, mode: str, rounds: int) -> list[tuple[str, dict[str, float]]]:
    gc.collect()
    calls.meter.counts, calls.meter.records = mode == "counted", []
    for _ in range(rounds):
        await SCENARIOS[scenario](calls)
        await calls.empty()
        await calls.floor()
    return calls.meter.records


async def _lease(calls: Calls, number: int) -> None:
    """Let the other workers hold so many leases while the measured one works."""
    held = 0
    while held < number:
        await calls.submit_many()
        held += len(await calls.claim_many(MANY, worker=1 + held // CAPACITY))


def _register_connections() -> None:
    from psycopg._connection_base import BaseConnection

    original = BaseConnection.__init__

    def registered(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        _connections.add(self)

    BaseConnection.__init__ = registered


def _write(message: dict[str, Any]) -> None:
    _output.write(json.dumps(message) + "\n")
    _output.flush()


def main() -> int:
    checkout, command = sys.argv[1], sys.argv[2]
    os.chdir(checkout)
    sys.path[0] = checkout  # instead of this file's folder
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    if command == "prepare":
        return prepare(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    import uvloop

    uvloop.run(answer())
    return 0


if __name__ == "__main__":
    # Standard output belongs to the protocol with the parent; log lines of the application join its errors.
    _output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.exit(main())
