"""Measures one tenant's calls while other clients abuse the server: `python -m benchmarks.abuse [SECONDS]`.

The abuse, all at once and from other loopback addresses than the tenant's: half-sent request heads, log followers that
read nothing, logins with wrong passwords, bodies sent byte by byte. Prints one line of JSON: the slowest and the median
`submit` and `/readyz` in milliseconds, their failures, the peak of the server's memory in MB, and what it holds before,
during and after the abuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.environment import Cluster

HALF_SENT_HEADS, FOLLOWERS, LOGINS, SLOW_BODIES = 1500, 600, 40, 500
DEFAULT_SECONDS = 60.0
SETTLE_SECONDS = 45.0  # longer than every time limit of the server: what it still holds then, it leaks
PROBE_PERIOD = 0.2
REQUEST_TIMEOUT = 30.0
RETRY_SECONDS = 5.0
LOG_CHUNKS, LOG_CHUNK_BYTES = 64, 64 << 10
VICTIM, HEADS, READERS, VISITORS, SENDERS = (f"127.0.0.{number}" for number in (1, 2, 3, 4, 5))

Answers = Counter[str]


class AbuseTarget:
    """The address of the server under test."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def connect(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from one of the loopback's addresses."""
        return await asyncio.open_connection(self.host, self.port, local_addr=(source, 0))

    async def request(self, source: str, head: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send one request on a connection of its own.

        Returns:
            The status (0 if the server closed the connection without an answer) and the head of the response.
        """
        reader, writer = await self.connect(source)
        try:
            lines = f"{head}\r\nHost: {self.host}:{self.port}\r\nContent-Length: {len(body)}\r\nConnection: close"
            writer.write(f"{lines}\r\n\r\n".encode() + body)
            answer = await reader.read(65536)
            return _status(answer), answer
        finally:
            writer.close()


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


async def _half_sent_head(target: AbuseTarget, seen: Answers) -> None:
    reader, writer = await target.connect(HEADS)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        for number in range(1000):
            writer.write(f"X-{number}: 1\r\n".encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    seen[f"head {_status(await reader.read(4096))}"] += 1
                    return
    finally:
        writer.close()


async def _follower(target: AbuseTarget, seen: Answers, token: str, job_id: str) -> None:
    """Follow a log without reading what comes after the status."""
    reader, writer = await target.connect(READERS)
    try:
        path = f"/v1/jobs/{job_id}/logs?follow=1"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {target.host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        seen[f"follower {_status(await reader.read(1024))}"] += 1
        await asyncio.sleep(5)
    finally:
        writer.close()


async def _login(target: AbuseTarget, seen: Answers) -> None:
    _, page = await target.request(VISITORS, "GET /admin/login/ HTTP/1.1")
    csrf = page.partition(b"csrftoken=")[2].partition(b";")[0].decode()
    form = f"csrfmiddlewaretoken={csrf}&username=admin&password=wrong".encode()
    head = f"POST /admin/login/ HTTP/1.1\r\nCookie: csrftoken={csrf}\r\nContent-Type: application/x-www-form-urlencoded"
    status, _ = await target.request(VISITORS, head, form)
    seen[f"login {status}"] += 1


async def _slow_body(target: AbuseTarget, seen: Answers) -> None:
    reader, writer = await target.connect(SENDERS)
    try:
        framing = "Content-Type: application/json\r\nContent-Length: 500"
        writer.write(f"POST /v1/jobs HTTP/1.1\r\nHost: {target.host}\r\n{framing}\r\n\r\n".encode())
        for _ in range(500):
            writer.write(b" ")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    seen[f"body {_status(await reader.read(4096))}"] += 1
                    return
    finally:
        writer.close()


async def _again(act: Callable[[], Awaitable[None]], until: float, seen: Answers) -> None:
    """Repeat an abuse; a client that was refused or disconnected tries again after the server's `Retry-After`."""
    while time.monotonic() < until:
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await act()
        except (OSError, TimeoutError) as error:
            seen[type(error).__name__] += 1
        await asyncio.sleep(min(RETRY_SECONDS, max(0.0, until - time.monotonic())))


async def _probe(
    target: AbuseTarget, head: str, body: Callable[[], bytes], expected: int, until: float
) -> dict[str, Any]:
    """Call as the tenant does, five times a second at most."""
    times, failures = [], Answers()
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                status, _ = await target.request(VICTIM, head, body())
        except (OSError, TimeoutError) as error:
            failures[type(error).__name__] += 1
        else:
            if status != expected:
                failures[str(status)] += 1
        times.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(max(0.0, PROBE_PERIOD - (time.monotonic() - began)))
    return {
        "calls": len(times),
        "p50_ms": round(statistics.median(times), 1),
        "p99_ms": round(sorted(times)[int(len(times) * 0.99)], 1),
        "max_ms": round(max(times), 1),
        "failures": dict(failures),
    }


def _usage(pids: list[int]) -> dict[str, int]:
    """Memory (MB), threads and open descriptors of the server's processes."""
    kilobytes = threads = descriptors = 0
    for pid in pids:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        kilobytes += int(status["VmRSS"].split()[0])
        threads += int(status["Threads"])
        descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"memory_mb": kilobytes // 1024, "threads": threads, "descriptors": descriptors}


async def _sample(pids: list[int], until: float) -> dict[str, int]:
    peak: Counter[str] = Counter()
    while time.monotonic() < until:
        for name, value in _usage(pids).items():
            peak[name] = max(peak[name], value)
        await asyncio.sleep(0.25)
    return dict(peak)


async def crowd(target: AbuseTarget, seconds: float, *, reader: str, job_id: str) -> Answers:
    """Abuse the server for some seconds.

    Args:
        target: The server.
        seconds: How long.
        reader: The token of a tenant who follows `job_id`.
        job_id: A running job of that tenant, with a log.

    Returns:
        How often each kind of abuse was answered with which status.
    """
    until, seen = time.monotonic() + seconds, Answers()
    members: list[tuple[int, Callable[[], Awaitable[None]]]] = [
        (HALF_SENT_HEADS, lambda: _half_sent_head(target, seen)),
        (FOLLOWERS, lambda: _follower(target, seen, reader, job_id)),
        (LOGINS, lambda: _login(target, seen)),
        (SLOW_BODIES, lambda: _slow_body(target, seen)),
    ]
    await asyncio.gather(*(_again(act, until, seen) for number, act in members for _ in range(number)))
    return seen


async def measure(target: AbuseTarget, pids: list[int], seconds: float, *, victim: str, body: bytes) -> dict[str, Any]:
    """Probe the server as the tenant `victim` does, and watch its processes.

    Args:
        target: The server.
        pids: Its processes.
        seconds: How long.
        victim: The tenant's token.
        body: What the tenant submits.

    Returns:
        Figures by name, as they are printed.
    """
    until = time.monotonic() + seconds
    submit = f"POST /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {victim}\r\nContent-Type: application/json"
    submits, readiness, peak = await asyncio.gather(
        _probe(target, submit, lambda: body, 201, until),
        _probe(target, "GET /readyz HTTP/1.1", bytes, 200, until),
        _sample(pids, until),
    )
    return {"submit": submits, "readyz": readiness, "peak": peak}


def _running_job_with_log(org_slug: str, pool: str) -> str:
    """Return the id of a running job that has printed 4 MiB, on a lease that outlives the measurement."""
    from orchestrator.step_logs import job_log_writes  # noqa: PLC0415 - after the settings
    from runtime_jobs.models import Project  # noqa: PLC0415 - likewise
    from runtime_jobs.specs import JOB_TYPES  # noqa: PLC0415 - likewise
    from tests import factories  # noqa: PLC0415 - likewise
    from workers.models import Pool  # noqa: PLC0415 - likewise

    policy = JOB_TYPES["steps"].policy(**factories.TIMINGS | {"lease_ttl_seconds": 3600})
    job = factories.submitted_steps(Project.objects.get(organization__slug=org_slug), policy=policy)
    worker = factories.WorkerFactory(pool=Pool.objects.get(slug=pool))
    lease = factories.claimed(worker, job_types=("steps",)).lease
    for seq in range(LOG_CHUNKS):
        job_log_writes.append_log(lease_ulid=lease.lease_ulid, worker=worker, seq=seq, chunk=b"x" * LOG_CHUNK_BYTES)
    return job.job_ulid


def main() -> int:
    if sys.argv[1:2] == ["crowd"]:
        host, port, seconds, reader, job_id = sys.argv[2:]
        answers = asyncio.run(crowd(AbuseTarget(host, int(port)), float(seconds), reader=reader, job_id=job_id))
        sys.stdout.write(json.dumps(dict(sorted(answers.items()))))
        return 0
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SECONDS
    cluster: Cluster = environment.opened()
    from benchmarks import tenants  # noqa: PLC0415 - after the settings
    from benchmarks.servers import scheduler, serving  # noqa: PLC0415 - likewise

    settled = tenants.settled("abuse", organizations=["victim", "reader"], workers=0)
    job_id = _running_job_with_log("reader", "abuse")
    probes = {"victim": settled.tokens["victim"], "body": json.dumps(tenants.body("victim")).encode()}
    with scheduler(cluster), serving(cluster, "asgi-1") as server:
        target = AbuseTarget(server.address.host, server.address.port)
        found = {"in_peace": asyncio.run(measure(target, server.pids, 5, **probes)), "before": _usage(server.pids)}
        # In a process of its own: 2,640 clients in the interpreter of the probes would delay what those measure.
        command = [sys.executable, "-m", "benchmarks.abuse", "crowd", target.host, str(target.port), str(seconds)]
        command += [settled.tokens["reader"], job_id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as abusers:
            found["under_abuse"] = asyncio.run(measure(target, server.pids, seconds, **probes))
            found["answers"] = json.loads(abusers.communicate(timeout=60)[0])
        time.sleep(SETTLE_SECONDS)
        found["after"] = _usage(server.pids)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
