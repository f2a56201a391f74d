"""Measures waiting claims: many idle long polls on one server process, and the time until one of them has a new job.

`python -m benchmarks.waiting` takes less than a minute. Its last line of output is a JSON object. The variable WAITERS
sets the number of long polls (2,000). The server and the scheduler process run on a test database, which is dropped at
the end.
"""

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

from django.conf import settings  # noqa: E402 - after the settings
from django.db import connection  # noqa: E402

from benchmarks import servers  # noqa: E402
from orchestrator.devtools import dev_server  # noqa: E402
from tests.factories import SUBMIT_BODY, OrganizationFactory, ProjectFactory, WorkerFactory, api_token  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NAME = "waiting"
PER_WORKER = 100  # long polls or jobs of one worker, whose capacity is 256
WAIT_SECONDS = 60
IDLE_SECONDS = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


def measure(
    *, database_url: str, waiters: int = 2000, jobs: int = 200, idle_seconds: float = IDLE_SECONDS
) -> dict[str, Any]:
    """Measure one server process while long polls wait, then the latency of new jobs.

    Args:
        database_url: Django's own database, migrated. The rows that are created there stay.
        waiters: The number of long polls.
        jobs: The number of jobs, which are submitted one after the other.
        idle_seconds: The time over which processor time is measured while nothing happens.

    Returns:
        Memory, threads, connections and processor time while nothing happens. For each job the milliseconds from the
        submit to the lease, and to the response to the submit.
    """
    allow_sockets(2 * waiters + 500)
    tokens = _create_rows(max(waiters, jobs))
    address = servers.free_address()
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


def _create_rows(number: int) -> dict[str, Any]:
    organization = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=organization)
    workers = [WorkerFactory(capacity=256) for _ in range(-(-number // PER_WORKER))]
    return {"client": api_token(organization), "workers": [(worker.worker_id, worker.token) for worker in workers]}


def _started(command: Sequence[str], database_url: str) -> subprocess.Popen[bytes]:
    url = f"{database_url}{'&' if '?' in database_url else '?'}application_name={NAME}"
    environment = os.environ | {"DATABASE_URL": url, "LOG_LEVEL": "WARNING"}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


class _WaitingLoad:
    """The long polls and the client that submits, in one event loop."""

    def __init__(self, address: tuple[str, int], pid: int, tokens: dict[str, Any], idle_seconds: float) -> None:
        self.address, self.pid, self.tokens, self.idle_seconds = address, pid, tokens, idle_seconds
        self.leased: asyncio.Queue[float] = asyncio.Queue()  # times at which a long poll got a lease

    async def measure(self, waiters: int, jobs: int) -> dict[str, Any]:
        before = await self._until(lambda number: number is not None)
        alone = _memory(self.pid)
        waiting = [asyncio.create_task(self._wait(number)) for number in range(waiters)]
        started = time.monotonic()
        await self._until(lambda number: number == waiters)
        arrived = time.monotonic() - started
        idle = await self._idle()
        figures = {"waiters": waiters, "arrived_seconds": round(arrived, 1), "rss_mb_alone": alone, **idle}
        answered, leased = zip(*[await self._job() for _ in range(jobs)], strict=True)
        figures |= {"latency_ms": _percentiles(leased), "submit_ms": _percentiles(answered)}
        figures["looks"] = await self._polls()
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
        """Send one long poll after the other, on one connection."""
        worker_id, token = self.tokens["workers"][number % len(self.tokens["workers"])]
        body = {"worker_id": worker_id, "wait_seconds": WAIT_SECONDS}
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            while True:
                status, _ = await _call(reader, writer, "POST /v1/runtime/leases", token, body)
                if status == 201:
                    self.leased.put_nowait(time.perf_counter())
                elif status != 204:
                    raise RuntimeError(f"a claim was answered {status}")
        finally:
            writer.close()

    async def _job(self) -> tuple[float, float]:
        """Return the milliseconds until the response to a submit, and until the lease, which is often earlier."""
        if not hasattr(self, "client"):
            self.client = await asyncio.open_connection(*self.address)
        sent = time.perf_counter()
        status, _ = await _call(*self.client, "POST /v1/runtime/jobs", self.tokens["client"], SUBMIT_BODY)
        answered = time.perf_counter()
        assert status == 201, status
        leased_at = await asyncio.wait_for(self.leased.get(), 30)
        await asyncio.sleep(0.05)  # other long polls that were woken have queried for jobs
        return (answered - sent) * 1000, (leased_at - sent) * 1000

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

    async def _polls(self) -> dict[str, int]:
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
    """Send a request of HTTP/1.1. Its response has a Content-Length or no body."""
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(raw)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    lengths = [int(line.partition(":")[2]) for line in answer if line.startswith("content-length:")]
    return int(answer[0].split()[1]), await reader.readexactly(lengths[0] if lengths else 0)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")  # not above the maximum
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
    """Return the number of the server's connections. The scheduler process has one more with the same name."""
    with contextlib.closing(connection), connection.cursor() as cursor:  # a connection of this thread
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
