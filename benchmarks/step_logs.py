"""Measures the logs of workflow jobs: appending, masking, finalizing, and following by hundreds of clients.

Appending is measured through the operation in this process, in turns with bare INSERT and COMMIT of the same bytes by
as many connections. What a runner's HTTP call costs besides is measured by the scenario `actions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import requests

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.step_logs import step_log_writes
from orchestrator.step_logs.finalizing import finalize_log
from runtime_jobs.models import JobStep, StepLog
from tests.factories import WorkerFactory, claimed, submitted_steps

CHUNK = 512 << 10
SMALL_CHUNK = 4 << 10
CLIENTS = 8
TEXT_OF_EVENT, END_OF_EVENT = b'"text":"', b'"}\n\n'
CONNECTING = 40  # followers that wait for the first byte: the server refuses those beyond its queue
MEBIBYTE = 1 << 20
LINE = "2026-11-22T20:{:02}:{:02} INFO build.module{:03}: processed item {:05} of 99999 in {:.4f} s (ok)\n"


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return the ratios that the document of the logs promises, and the figures behind them."""
    is_full = sizes.name == "full"
    tenants.settled("logs", organizations=["acme"], workers=1)
    appended = _append_rates(cluster, chunks=24 if is_full else 8, rounds=5 if is_full else 3)
    flat = _flatness(20_000 if is_full else 4_000)
    masks = _masking(rounds=9 if is_full else 5)
    finalized = _finalizing(100 if is_full else 25)
    followers = {count: _followers(cluster, count, 10.0 if is_full else 4.0) for count in (1, 100, 1000)}
    reads = {count: found["reads_per_s"] for count, found in followers.items()}
    return {
        "log_mb": round(appended["ours"] / appended["bare"], 2),
        "log_flat": round(flat["last"] / flat["first"], 2),
        "masks": round(masks["1000"] / masks["0"], 2),
        "finalize_mb": finalized["memory_mb"],
        "followers_p99_ms": followers[1000]["p99_ms"],
        "followers_reads": round(reads[1000] / reads[1], 2) if reads[1] else None,
        "step_logs": {
            "append_mb_per_s": appended,
            "chunk_ms": flat,
            "masked_chunk_ms": masks,
            "finalize": finalized,
            "followers": followers,
        },
    }


def text(size: int, seed: int = 0) -> bytes:
    """Return lines as a build prints them."""
    chance = random.Random(seed)
    lines, length = [], 0
    while length < size:
        numbers = (chance.randrange(60), chance.randrange(60), chance.randrange(400), chance.randrange(99999))
        line = LINE.format(*numbers, chance.random()).encode()
        lines.append(line)
        length += len(line)
    return b"".join(lines)[:size]


def new_step() -> JobStep:
    """Return the only step of a new job that runs."""
    submitted_steps(tenants.project("acme", "logs"))
    worker = WorkerFactory(pool__slug="logs")
    job = claimed(worker, job_types=("steps",)).job
    return JobStep.objects.create(job=job, index=0, run="true")


@operation
def append(uow: UnitOfWork, step: JobStep, seq: int, data: bytes, masks: tuple[bytes, ...]) -> None:
    """Append a chunk, as the runner's call does."""
    step_log_writes.append_step_log(uow, step=step, seq=seq, data=data, masks=masks)


def _secrets(count: int) -> tuple[bytes, ...]:
    return tuple(secrets.token_urlsafe(30).encode() for _ in range(count))


def _append_rates(cluster: Cluster, *, chunks: int, rounds: int) -> dict[str, float]:
    """MB/s of all clients together, 20 masks, in turns with bare inserts into a table without constraints."""
    masks, data = _secrets(20), [text(CHUNK, seed) for seed in range(CLIENTS)]
    with cluster.superuser() as session:
        session.execute("CREATE TABLE bare_chunks (id bigserial PRIMARY KEY, chunk bytea NOT NULL)")
        session.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO orchestrator")
        session.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO orchestrator")

    def ours(client: int) -> Callable[[], None]:
        step = new_step()

        def run() -> None:
            for seq in range(chunks):
                append(step, seq, data[client], masks)

        return run

    def bare(client: int) -> Callable[[], None]:
        session = psycopg.connect(cluster.url())

        def run() -> None:
            with session:
                for _ in range(chunks):
                    session.execute("INSERT INTO bare_chunks (chunk) VALUES (%b)", [data[client]])
                    session.commit()

        return run

    found: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(rounds):
        for name, make in (("bare", bare), ("ours", ours)):
            seconds = _together([make(client) for client in range(CLIENTS)])
            found[name].append(CLIENTS * chunks * CHUNK / 1e6 / seconds)
    with cluster.superuser() as session:
        session.execute("DROP TABLE bare_chunks")
    return {name: round(statistics.median(each), 1) for name, each in found.items()}


def _together(calls: list[Callable[[], None]]) -> float:
    from django.db import connection  # noqa: PLC0415 - after the settings

    failures: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - began


def _flatness(last: int) -> dict[str, float]:
    """Milliseconds of a chunk of 4 KiB: the median of 100 around chunk 20, and around the last one."""
    step, masks, data = new_step(), _secrets(20), text(SMALL_CHUNK)
    found: list[float] = []
    for seq in range(last):
        began = time.perf_counter()
        append(step, seq, data, masks)
        found.append(1000 * (time.perf_counter() - began))
    first, final = statistics.median(found[20:120]), statistics.median(found[-100:])
    return {"first": round(first, 3), "last": round(final, 3), "chunks": last}


def _masking(*, rounds: int) -> dict[str, float]:
    """Milliseconds of a chunk of 512 KiB with no mask, 20 and 1,000, in turns. The automata are compiled already."""
    data = text(CHUNK)
    scenes = {count: (new_step(), _secrets(count)) for count in (0, 20, 1000)}
    found: dict[int, list[float]] = {count: [] for count in scenes}
    for step, masks in scenes.values():
        append(step, 0, data, masks)
    for seq in range(1, rounds * 8 + 1):
        for count, (step, masks) in scenes.items():
            began = time.perf_counter()
            append(step, seq, data, masks)
            found[count].append(1000 * (time.perf_counter() - began))
    return {str(count): round(statistics.median(each), 2) for count, each in found.items()}


def _finalizing(mebibytes: int) -> dict[str, float]:
    """Seconds of one log, and MiB of memory that the process needs beyond what it had."""
    step = new_step()
    data = text(MEBIBYTE // 2)
    for seq in range(2 * mebibytes):
        append(step, seq, data, ())
    key = StepLog.objects.get(job_id=step.job_id, step=0).pk
    with _peak_memory() as peak:
        began = time.perf_counter()
        assert finalize_log(key)
        seconds = time.perf_counter() - began
    return {"mib": mebibytes, "seconds": round(seconds, 2), "memory_mb": round(peak["mb"], 1)}


@contextlib.contextmanager
def _peak_memory() -> Any:
    """The highest resident memory of this process during the block, above that at its beginning."""
    found = {"mb": 0.0}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    yield found
    found["mb"] = max(0.0, (_status("VmHWM") - before) / 1024)


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def _followers(cluster: Cluster, count: int, seconds: float) -> dict[str, float]:
    """Milliseconds from the append to the receipt by each follower, at 10 chunks/s, and reads of the server."""
    step = new_step()
    token = _token()
    limits = {"STREAMS_PER_CALLER": "2000", "STREAMS_PER_ORGANIZATION": "2000", "MAX_CONNECTIONS": "4096"}
    with servers.serving(cluster, "asgi-1", **limits) as server:
        url = server.address.url
        sent: list[float] = []
        latencies = asyncio.run(_follow(url, token, count, step, sent, seconds=seconds))
        reads, period = latencies.pop(), seconds
    ordered = sorted(latencies)
    assert len(ordered) == count * len(sent), (len(ordered), count * len(sent))
    return {
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 1),
        "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 1),
        "reads_per_s": round(reads / period, 1),
        "chunks": len(sent),
    }


def _token() -> str:
    from tests.factories import api_token  # noqa: PLC0415 - a factory, used here only

    return api_token(tenants.project("acme", "logs").organization)


async def _follow(url: str, token: str, count: int, step: JobStep, sent: list[float], *, seconds: float) -> list[float]:
    """Return the latency of each chunk at each follower, and at last the number of reads of the server."""
    parts = urlsplit(url)
    lines = [
        "GET /v1/jobs/{}/logs/stream HTTP/1.1",
        "Host: {}",
        "Authorization: Bearer {}",
        "Accept: text/event-stream",
    ]
    head = "\r\n".join(lines).format(step.job_id, parts.netloc, token) + "\r\n\r\n"
    latencies: list[float] = []
    ready, total = asyncio.Semaphore(0), int(seconds * 10)
    connecting = asyncio.Semaphore(CONNECTING)

    def receive(number: int, at: float) -> None:
        if number == 0:
            connecting.release()
            ready.release()
        else:
            latencies.append(at - sent[number - 1])

    async def client() -> None:
        await connecting.acquire()
        _, follower = await asyncio.get_running_loop().create_connection(
            lambda: _Follower(head.encode(), total + 1, receive), parts.hostname, parts.port
        )
        await follower.ended
        follower.transport.close()

    append_in_thread = asyncio.to_thread
    await append_in_thread(append, step, 0, b"0\n", ())
    clients = [asyncio.create_task(client()) for _ in range(count)]
    async with asyncio.timeout(60):
        for _ in range(count):
            await ready.acquire()
    before = await append_in_thread(_reads, url)
    for number in range(1, total + 1):
        sent.append(time.perf_counter())
        await append_in_thread(append, step, number, f"{number}\n".encode(), ())
        await asyncio.sleep(max(0.0, sent[0] + number / 10 - time.perf_counter()))
    await asyncio.gather(*clients)
    return [*latencies, await append_in_thread(_reads, url) - before]


class _Follower(asyncio.Protocol):
    """Receives events, each with one number in its text, and does nothing else: 1,000 share a processor core.

    With the stream reader of asyncio and a JSON parser, the clients took longer than the server.
    """

    transport: Any

    def __init__(self, request: bytes, events: int, receive: Callable[[int, float], None]) -> None:
        self._request, self._missing, self._receive = request, events, receive
        self._rest = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        at = time.perf_counter()
        *texts, self._rest = (self._rest + data).split(END_OF_EVENT)
        for text in texts:
            for number in text.rpartition(TEXT_OF_EVENT)[2].split(b"\\n"):
                if number:
                    self._receive(int(number), at)
                    self._missing -= 1
        if not self._missing and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the stream ended"))


def _reads(url: str) -> float:
    lines = requests.get(f"{url}/metrics", timeout=10).text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith("orchestrator_stream_reads_total")), 0.0)
