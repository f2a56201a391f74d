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
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import stage
from benchmarks.stage import Stage

HALF_SENT_HEADS, FOLLOWERS, LOGINS, SLOW_BODIES = 1500, 600, 40, 500
DEFAULT_SECONDS = 60.0
SETTLE_SECONDS = 45.0  # longer than every time limit of the server: what it still holds then, it leaks
PROBE_PERIOD = 0.2
REQUEST_TIMEOUT = 30.0
RETRY_SECONDS = 5.0
LOG_CHUNKS, LOG_CHUNK_BYTES = 64, 64 << 10
VICTIM, HEADS, READERS, VISITORS, SENDERS = (f"127.0.0.{number}" for number in (1, 2, 3, 4, 5))

Answers = Counter[str]


class Target:
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


async def _half_sent_head(target: Target, seen: Answers) -> None:
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


async def _follower(target: Target, seen: Answers, token: str, job_id: str) -> None:
    """Follow a log without reading what comes after the status."""
    reader, writer = await target.connect(READERS)
    try:
        path = f"/v1/jobs/{job_id}/logs?follow=1"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {target.host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        seen[f"follower {_status(await reader.read(1024))}"] += 1
        await asyncio.sleep(5)
    finally:
        writer.close()


async def _login(target: Target, seen: Answers) -> None:
    _, page = await target.request(VISITORS, "GET /admin/login/ HTTP/1.1")
    csrf = page.partition(b"csrftoken=")[2].partition(b";")[0].decode()
    form = f"csrfmiddlewaretoken={csrf}&username=admin&password=wrong".encode()
    head = f"POST /admin/login/ HTTP/1.1\r\nCookie: csrftoken={csrf}\r\nContent-Type: application/x-www-form-urlencoded"
    status, _ = await target.request(VISITORS, head, form)
    seen[f"login {status}"] += 1


async def _slow_body(target: Target, seen: Answers) -> None:
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
    """Repeat an abuse; a client that was refused or cut off comes back after the server's `Retry-After`."""
    while time.monotonic() < until:
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await act()
        except (OSError, TimeoutError) as error:
            seen[type(error).__name__] += 1
        await asyncio.sleep(min(RETRY_SECONDS, max(0.0, until - time.monotonic())))


async def _probe(target: Target, head: str, body: Callable[[], bytes], expected: int, until: float) -> dict[str, Any]:
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


async def abuse(
    target: Target, pids: list[int], seconds: float, *, victim: str, reader: str, job_id: str, body: bytes
) -> dict[str, Any]:
    """Probe the server for some seconds in peace, then under abuse, and look at it once the abuse has ended.

    Args:
        target: The server.
        pids: Its processes.
        seconds: How long the abuse lasts.
        victim: The token of the tenant whose calls are measured.
        reader: The token of another tenant, who follows `job_id`.
        job_id: A running job of that other tenant, with a log.
        body: What the victim submits.

    Returns:
        Figures by name, as they are printed.
    """
    submit = f"POST /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {victim}\r\nContent-Type: application/json"
    probes = (("submit", submit, lambda: body, 201), ("readyz", "GET /readyz HTTP/1.1", bytes, 200))

    async def measured(until: float) -> dict[str, Any]:
        results = await asyncio.gather(
            *(_probe(target, head, content, code, until) for _, head, content, code in probes)
        )
        return {name: result for (name, *_), result in zip(probes, results, strict=True)}

    found: dict[str, Any] = {"in_peace": await measured(time.monotonic() + 5), "before": _usage(pids)}
    until, seen = time.monotonic() + seconds, Answers()
    crowd: list[tuple[int, Callable[[], Awaitable[None]]]] = [
        (HALF_SENT_HEADS, lambda: _half_sent_head(target, seen)),
        (FOLLOWERS, lambda: _follower(target, seen, reader, job_id)),
        (LOGINS, lambda: _login(target, seen)),
        (SLOW_BODIES, lambda: _slow_body(target, seen)),
    ]
    abusers = [asyncio.create_task(_again(act, until, seen)) for number, act in crowd for _ in range(number)]
    found["under_abuse"], found["peak"] = await asyncio.gather(measured(until), _sample(pids, until))
    await asyncio.gather(*abusers)
    await asyncio.sleep(SETTLE_SECONDS)
    return found | {"after": _usage(pids), "answers": dict(sorted(seen.items()))}


def _running_job_with_log(org_slug: str, pool: str) -> str:
    """Return the id of a running job that has printed 4 MiB, on a lease that outlives the measurement."""
    from orchestrator import lifecycle  # noqa: PLC0415 - after the settings
    from runtime_jobs.models import Project  # noqa: PLC0415 - likewise
    from runtime_jobs.specs import steps_policy  # noqa: PLC0415 - likewise
    from tests import factories  # noqa: PLC0415 - likewise
    from workers.models import Pool  # noqa: PLC0415 - likewise

    policy = steps_policy(**factories.TIMINGS | {"lease_ttl_seconds": 3600})
    job = factories.submitted_steps(Project.objects.get(organization__slug=org_slug), policy=policy)
    worker = factories.WorkerFactory(pool=Pool.objects.get(slug=pool))
    lease = factories.claimed(worker, job_types=("steps",)).lease
    for seq in range(LOG_CHUNKS):
        lifecycle.append_log(lease_ulid=lease.lease_ulid, worker=worker, seq=seq, chunk=b"x" * LOG_CHUNK_BYTES)
    return job.job_ulid


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SECONDS
    place: Stage = stage.opened()
    from benchmarks import tenants  # noqa: PLC0415 - after the settings
    from benchmarks.servers import clock, serving  # noqa: PLC0415 - likewise

    crew = tenants.settled("abuse", organizations=["victim", "reader"], workers=0)
    job_id = _running_job_with_log("reader", "abuse")
    body = json.dumps(tenants.body("victim")).encode()
    with clock(place), serving(place, "asgi-1") as server:
        target = Target(server.address.host, server.address.port)
        found = asyncio.run(
            abuse(
                target,
                server.pids,
                seconds,
                victim=crew.tokens["victim"],
                reader=crew.tokens["reader"],
                job_id=job_id,
                body=body,
            )
        )
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
