"""Measures waiting claims: many idle long polls on one server process, and the time until one of them has a new job.

`python -m benchmarks.waiting` takes less than a minute and ends with one JSON object; WAITERS=200 for fewer.

It starts its own server and scheduler process on a test database that is dropped at the end."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
from django.test.utils import setup_databases, teardown_databases

from config.postgres import embedded

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.conf import settings  # noqa: E402 the settings come first
from django.db import connection  # noqa: E402

from orchestrator.devtools import dev_server  # noqa: E402
from tests.factories import SUBMIT_BODY, OrganizationFactory, ProjectFactory, WorkerFactory, api_token  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NAME = "waiting"
PER_WORKER = 100  # long polls, or jobs: a worker has at most 256 at once
WAIT_SECONDS = 60
IDLE_SECONDS = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


def measure(
    *, database_url: str, waiters: int = 2000, jobs: int = 200, idle_seconds: float = IDLE_SECONDS
) -> dict[str, Any]:
    """Measure one server process while `waiters` long polls wait, then the latency of new jobs.

    Returns memory, connections and processor time while nothing happens; then the milliseconds from the submit of a job
    to its lease, one job after the other, and to the response to the submit.

    `database_url` is Django's own database, with the tables in it; what is created there stays.
    """
    allow_sockets(2 * waiters + 500)
    tokens = _create_rows(max(waiters, jobs))
    address = dev_server.free_address("127.0.0.1", 0)
    server = _started(dev_server.server(address).command, database_url)
    clock = _started([sys.executable, "manage.py", "runclock"], database_url)
    try:
        return asyncio.run(
            _WaitingLoad((address.host, address.port), server.pid, tokens, idle_seconds).measure(waiters, jobs)
        )
    finally:
        for process in (server, clock):
            process.send_signal(signal.SIGTERM)
        for process in (server, clock):
            process.wait(30)


def allow_sockets(number: int) -> None:
    """Let this process, and those that it starts, open so many files if the system allows that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


def _create_rows(most: int) -> dict[str, Any]:
    organization = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=organization)
    workers = [WorkerFactory(capacity=256) for _ in range(-(-most // PER_WORKER))]
    return {"client": api_token(organization), "workers": [(worker.worker_id, worker.token) for worker in workers]}


def _started(command: Sequence[str], database_url: str) -> subprocess.Popen[bytes]:
    url = f"{database_url}{'&' if '?' in database_url else '?'}application_name={NAME}"
    environment = os.environ | {"DATABASE_URL": url, "LOG_LEVEL": "WARNING"}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


class _WaitingLoad:
    def __init__(self, address: tuple[str, int], pid: int, tokens: dict[str, Any], idle_seconds: float) -> None:
        self.address, self.pid, self.tokens, self.idle_seconds = address, pid, tokens, idle_seconds
        self.held: asyncio.Queue[float] = asyncio.Queue()

    async def measure(self, waiters: int, jobs: int) -> dict[str, Any]:
        before = await self._until(lambda number: number is not None)
        alone = _memory(self.pid)
        waiting = [asyncio.create_task(self._wait(number)) for number in range(waiters)]
        begun = time.monotonic()
        await self._until(lambda number: number == waiters)
        arrived = time.monotonic() - begun
        idle = await self._idle()
        figures = {"waiters": waiters, "arrived_seconds": round(arrived, 1), "rss_mb_alone": alone, **idle}
        answered, held = zip(*[await self._job() for _ in range(jobs)], strict=True)
        figures |= {"latency_ms": _percentiles(held), "submit_ms": _percentiles(answered)}
        figures["looks"] = await self._looks()
        assert before == 0
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return figures

    async def _idle(self) -> dict[str, Any]:
        spent = _processor_seconds(self.pid)
        await asyncio.sleep(self.idle_seconds)
        spent = _processor_seconds(self.pid) - spent
        return {
            "rss_mb": _memory(self.pid),
            "threads": _threads(self.pid),
            "connections": await asyncio.to_thread(_connections),
            "cpu_percent": round(100 * spent / self.idle_seconds, 1),
        }

    async def _wait(self, number: int) -> None:
        """Wait for a job again and again, on one connection."""
        worker_id, token = self.tokens["workers"][number % len(self.tokens["workers"])]
        body = {"worker_id": worker_id, "wait_seconds": WAIT_SECONDS}
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            while True:
                status, _ = await _call(reader, writer, "POST /v1/runtime/leases", token, body)
                if status == 201:
                    self.held.put_nowait(time.perf_counter())
                elif status != 204:
                    raise RuntimeError(f"a claim was answered {status}")
        finally:
            writer.close()

    async def _job(self) -> tuple[float, float]:
        """Return the milliseconds until the submit was answered, and until a worker had the job: often before that."""
        if not hasattr(self, "client"):
            self.client = await asyncio.open_connection(*self.address)
        sent = time.perf_counter()
        status, _ = await _call(*self.client, "POST /v1/runtime/jobs", self.tokens["client"], SUBMIT_BODY)
        answered = time.perf_counter()
        assert status == 201, status
        held = await asyncio.wait_for(self.held.get(), 30)
        await asyncio.sleep(0.05)  # the others have looked, it is quiet again
        return (answered - sent) * 1000, (held - sent) * 1000

    async def _until(self, condition: Any) -> float | None:
        for _ in range(150):
            if condition(found := await self._waiting()):
                return found
            await asyncio.sleep(0.2)
        raise TimeoutError

    async def _waiting(self) -> float | None:
        try:
            lines = await self._metrics()
        except OSError:
            return None
        found = [line for line in lines if line.startswith("orchestrator_waiting_claims ")]
        return float(found[0].split()[1]) if found else None

    async def _looks(self) -> dict[str, int]:
        lines = [line for line in await self._metrics() if line.startswith("orchestrator_claim_looks_total{")]
        return {line[line.index("{") : line.index("}") + 1]: int(float(line.split()[-1])) for line in lines}

    async def _metrics(self) -> list[str]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            _, body = await _call(reader, writer, "GET /metrics", "", None)
        finally:
            writer.close()
        return body.decode().splitlines()


async def _call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str, token: str, body: Any
) -> tuple[int, bytes]:
    """One request of HTTP/1.1 whose answer has a Content-Length or no body."""
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(raw)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    lengths = [int(line.partition(":")[2]) for line in answer if line.startswith("content-length:")]
    return int(answer[0].split()[1]), await reader.readexactly(lengths[0] if lengths else 0)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")  # never beyond the longest
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(max(values), 1)}


def _memory(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _connections() -> int:
    """Of the server; the clock has one of its own under the same name."""
    with contextlib.closing(connection), connection.cursor() as cursor:  # this thread's own
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s", [f"{NAME}%"])
        found: int = cursor.fetchone()[0]
    return found - 1


def main() -> int:
    embedded.ensure_unless_given()
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        name = connection.settings_dict["NAME"]
        given = os.environ.get("DATABASE_URL")
        url = urlsplit(given)._replace(path=f"/{name}").geturl() if given else embedded.url(settings.STATE_DIR, name)
        figures = measure(database_url=url, waiters=int(os.environ.get("WAITERS", "2000")))
    finally:
        teardown_databases(databases, verbosity=0)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
