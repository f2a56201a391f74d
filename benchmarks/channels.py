"""Compares the channel of the Bencher protocol with HTTP: heartbeats, claims, whole executions, memory.

`beats_vs_http`: the processor time of the server for a heartbeat. Each of many channels sends one every second, as the
real runner does. Over HTTP workers with as many leases send one after the other.
`channel_claim_vs_poll`: the time from a submit to the claimed job of a waiting channel and of a waiting long poll of
the native API, in turns. Both jobs are submitted by the operation, in this process.
`channel_lifecycles_vs_http`: executions a second of jobs that wait, four messages each. Those of a channel store an
output, read it and store its metric.
`channel_memory_vs_poll`: the memory of a process with many waiting channels, and with as many waiting long polls.
`claim_100_specs`: the claim of a runner with a hundred hardware specs and of one with one, each spec with jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from django.db import connection

from benchmarks import processors, runners, servers, tenants
from benchmarks.callers import COMPLETED, WorkerCaller
from benchmarks.environment import Cluster
from benchmarks.histogram import Tally, spread
from benchmarks.peers_runner import ratio
from benchmarks.runners import MOST_CHANNELS, RunnerTenant, channel_path
from benchmarks.sizes import Sizes
from benchmarks.waiting import allow_sockets
from benchmarks.websocket import ChannelConnection
from orchestrator.protocols.bencher.channel.claims import claim_for_runner
from orchestrator.services import heartbeat
from runtime_jobs.models import Job
from tests.factories import submitted_steps
from workers.models import Worker

LAYOUT = "asgi-1"
POOL = "beside-channels"  # of the workers of the native API
FEW = 16  # waiting claims for which jobs are submitted
HTTP_CLIENTS = 8
HTTP_PERIOD = 4.0  # seconds between two heartbeats of a lease: one process would not answer 1,000 a second
OPENING = 16  # connections that are opened at the same time
SETTLED_SECONDS = 0.03  # after each sample of a latency
SLICES = 2
MANY_SPECS = 100
ROUND = 10
BMF = '{"fibonacci":{"latency":{"value":12.5}}}'
RESULTS = [{"exit_code": 0, "stdout": BMF}]
# Of a native execution, after its claim.
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("acknowledge", {}),
    ("heartbeat", {"phase": "executing"}),
    ("complete", COMPLETED),
)


@dataclass(frozen=True)
class ServedCluster:
    """A server with its PostgreSQL, both of which a load uses."""

    cluster: Cluster
    server: servers.Serving

    def seconds(self) -> dict[str, float]:
        """Return the processor time so far."""
        of_postgres = processors.of_postgres(self.cluster)
        return {
            "server_ms": sum(map(processors.seconds_of, self.server.pids)),
            "postgres_ms": sum(map(processors.seconds_of, of_postgres)),
        }

    async def during(self, tally: Tally) -> dict[str, Any]:
        """Return the milliseconds of each counted step of a load that is under way, at its end."""
        await asyncio.sleep(tally.begins - time.monotonic())
        before = self.seconds()
        await asyncio.sleep(tally.ends - time.monotonic())
        spent, done = self.seconds(), tally.done
        each = {name: round((spent[name] - before[name]) / max(1, done) * 1000, 3) for name in spent}
        return each | {"per_s": round(done / (tally.ends - tally.begins), 1)}

    async def line(self, runner: Worker) -> ChannelConnection:
        address, token = self.server.address, runner.token
        return await ChannelConnection.opened(address.host, address.port, channel_path(runner), token)

    async def lines(self, hired: list[Worker], number: int) -> list[ChannelConnection]:
        """Open so many channels, in turns by these runners."""
        opening = asyncio.Semaphore(OPENING)

        async def opened(runner: Worker) -> ChannelConnection:
            async with opening:
                return await self.line(runner)

        turns = itertools.islice(itertools.cycle(hired), number)
        return list(await asyncio.gather(*map(opened, turns)))

    def caller(self, worker: tuple[str, str], tally: Tally) -> WorkerCaller:
        return WorkerCaller(worker, self.server.address.host, self.server.address.port, tally)


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return the five ratios, and their parts as `channels`."""
    allow_sockets(2 * sizes.polls + 500)
    parts: dict[str, Any] = {"specs": specs(sizes)}
    for name, part in (("beats", beats), ("claims", claims), ("lifecycles", lifecycles)):
        cluster.emptied()
        parts[name] = part(cluster, sizes)
    parts["memory"] = {kind: memory(cluster, sizes, kind) for kind in ("channel", "poll")}
    return {
        "beats_vs_http": _ratio_of(parts["beats"], "http", "channel", "server_ms"),
        "channel_claim_vs_poll": _ratio_of(parts["claims"], "channel", "poll", "p50"),
        "channel_lifecycles_vs_http": _ratio_of(parts["lifecycles"], "channel", "http", "per_s"),
        "channel_memory_vs_poll": _ratio_of(parts["memory"], "channel", "poll", "kib_each"),
        "claim_100_specs": ratio(parts["specs"]["many_ms"], parts["specs"]["one_ms"]),
        "channels": parts,
    }


def _ratio_of(part: dict[str, Any], one: str, other: str, figure: str) -> float | None:
    return ratio(part[one][figure], part[other][figure])


@contextmanager
def _served(cluster: Cluster) -> Iterator[ServedCluster]:
    with servers.serving(cluster, LAYOUT) as server, servers.scheduler(cluster):
        yield ServedCluster(cluster, server)


# --- Heartbeats -------------------------------------------------------------------------------------------------------


def beats(cluster: Cluster, sizes: Sizes) -> dict[str, Any]:
    """Return the processor time of a heartbeat over channels and over HTTP, with as many executions."""
    number = sizes.executing
    spec = runners.new_spec(0)
    hired = runners.hired(-(-number // MOST_CHANNELS), [spec])
    RunnerTenant().fill(spec, number)
    workers = tenants.settled(POOL, organizations=[], workers=len(hired))
    tenants.fill("acme", POOL, number)
    with _served(cluster) as served:
        channel = uvloop.run(_channel_beats(served, hired, sizes))
        http = uvloop.run(_http_beats(served, workers, sizes))
    return {"executing": number, "channel": channel, "http": http}


async def _channel_beats(served: ServedCluster, hired: list[Worker], sizes: Sizes) -> dict[str, Any]:
    lines = await served.lines(hired, sizes.executing)
    for start in range(0, len(lines), OPENING):
        await asyncio.gather(*map(_begin, lines[start : start + OPENING]))
    tally = Tally.of(warmup=4, seconds=sizes.seconds / 2)  # the first heartbeat of each bills its first minute
    beating = [_beat(line, number / len(lines), tally) for number, line in enumerate(lines)]
    found, *_ = await asyncio.gather(served.during(tally), *beating)
    for line in lines:
        line.close()
    return found | {"answer_ms": spread(tally.seconds["heartbeat"])}


async def _begin(line: ChannelConnection) -> str:
    """Claim a job and begin to execute it. Returns its UUID."""
    job = await line.ask("ready", poll_timeout=60)
    assert job["event"] == "job", job
    await _acknowledged(line, job["uuid"], "running")
    uuid: str = job["uuid"]
    return uuid


async def _acknowledged(line: ChannelConnection, uuid: str, event: str, **members: Any) -> None:
    reply = await line.ask(event, **members)
    assert reply == {"event": "ack", "job": uuid}, reply


async def _beat(line: ChannelConnection, delay: float, tally: Tally) -> None:
    """Send a heartbeat every second."""
    await asyncio.sleep(delay)
    while not tally.is_over:
        began = time.monotonic()
        reply = await line.ask("heartbeat")
        assert reply["event"] == "ack", reply
        tally.called("heartbeat", began)
        tally.add()
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))


async def _http_beats(served: ServedCluster, workers: tenants.Tenants, sizes: Sizes) -> dict[str, Any]:
    """Send heartbeats by a few connections, one after the other over all leases."""
    tally = Tally.of(warmup=0, seconds=0)
    leases: list[tuple[tuple[str, str], str]] = []
    for worker in workers.workers:
        caller = served.caller(worker, tally)
        held = await _hold(caller, min(MOST_CHANNELS, sizes.executing - len(leases)))
        leases += [(worker, lease_id) for lease_id in held]
        caller.connection.close()
    tally = Tally.of(warmup=1, seconds=sizes.seconds / 4)
    shares = [leases[place::HTTP_CLIENTS] for place in range(HTTP_CLIENTS)]
    beating = [_http_beats_of(served, share, tally) for share in shares if share]
    found, *_ = await asyncio.gather(served.during(tally), *beating)
    return found | {"answer_ms": spread(tally.seconds["heartbeat"])}


async def _hold(caller: WorkerCaller, number: int) -> list[str]:
    held: list[str] = []
    while len(held) < number:
        found = [lease["lease_id"] for lease in await caller.claim_many(min(64, number - len(held)))]
        await caller.report_many("acknowledge", found)
        await caller.report_many("heartbeat", found, {"phase": "executing"})
        held += found
    return held


async def _http_beats_of(served: ServedCluster, leases: list[tuple[tuple[str, str], str]], tally: Tally) -> None:
    """Send heartbeats of these leases over one connection, each lease's every few seconds: all of them are written."""
    callers = {worker: served.caller(worker, tally) for worker, _ in leases}
    connected = next(iter(callers.values())).connection
    for caller in callers.values():
        caller.connection = connected
    begun = time.monotonic()
    for number, (worker, lease_id) in enumerate(itertools.cycle(leases)):
        await asyncio.sleep(max(0.0, begun + number * HTTP_PERIOD / len(leases) - time.monotonic()))
        if tally.is_over:
            break
        await callers[worker].report("heartbeat", lease_id)
        tally.add()
    connected.close()


# --- Claims -----------------------------------------------------------------------------------------------------------


def claims(cluster: Cluster, sizes: Sizes) -> dict[str, Any]:
    """Return the milliseconds from the submit of a job until a waiting channel, or a waiting long poll, has it."""
    spec = runners.new_spec(0)
    hired = runners.hired(1, [spec])
    tenant, project = RunnerTenant(), tenants.project("acme", POOL)
    workers = tenants.settled(POOL, organizations=[], workers=1)
    submits: dict[str, Callable[[], Any]] = {
        "channel": lambda: tenant.submit(spec),
        "poll": lambda: submitted_steps(project),
    }
    with _served(cluster) as served, ThreadPoolExecutor(1) as thread:
        try:
            found = uvloop.run(
                _latencies(
                    served,
                    hired[0],
                    workers.workers[0],
                    submits=submits,
                    thread=thread,
                    samples=sizes.latencies // 2,
                )
            )
        finally:
            thread.submit(lambda: connection.close()).result()  # noqa: PLW0108 the connection is that of the thread
    return found


async def _latencies(
    served: ServedCluster,
    runner: Worker,
    worker: tuple[str, str],
    *,
    submits: dict[str, Callable[[], Any]],
    thread: ThreadPoolExecutor,
    samples: int,
) -> dict[str, Any]:
    held: asyncio.Queue[float] = asyncio.Queue()
    finished: asyncio.Queue[None] = asyncio.Queue()
    lines = await served.lines([runner], FEW)
    waiting = [asyncio.create_task(_take(line, held, finished)) for line in lines]
    waiting += [asyncio.create_task(_poll(served, worker, held, finished)) for _ in range(FEW)]
    await _until_waiting(served, 2 * FEW)
    seconds: dict[str, list[float]] = {name: [] for name in submits}
    for _ in range(samples):
        for name, submit in submits.items():
            sent = await asyncio.get_running_loop().run_in_executor(thread, _timed, submit)
            seconds[name].append(await asyncio.wait_for(held.get(), 30) - sent)
            await asyncio.wait_for(finished.get(), 30)
            await asyncio.sleep(SETTLED_SECONDS)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return {name: spread(found) for name, found in seconds.items()}


def _timed(submit: Callable[[], Any]) -> float:
    began = time.monotonic()
    submit()
    return began


async def _take(line: ChannelConnection, held: asyncio.Queue[float], finished: asyncio.Queue[None]) -> None:
    """Wait for a job and finish it, again and again."""
    try:
        while True:
            job = await line.ask("ready", poll_timeout=600)
            held.put_nowait(time.monotonic())
            await _acknowledged(line, job["uuid"], "running")
            await _acknowledged(line, job["uuid"], "completed", job=job["uuid"], results=RESULTS)
            finished.put_nowait(None)
    finally:
        line.close()


async def _poll(
    served: ServedCluster, worker: tuple[str, str], held: asyncio.Queue[float], finished: asyncio.Queue[None]
) -> None:
    """Wait for a job and finish it by the native API, again and again."""
    caller = served.caller(worker, Tally.of(warmup=0, seconds=0))
    offer = caller.offer | {"acknowledge": False, "wait_seconds": 60}
    try:
        while True:
            status, lease = await caller.call("claim", "/v1/runtime/leases", offer, (201, 204))
            if status == 201:
                held.put_nowait(time.monotonic())
                await caller.report("complete", lease["lease_id"], COMPLETED)
                finished.put_nowait(None)
    finally:
        caller.connection.close()


async def _until_waiting(served: ServedCluster, number: int) -> None:
    """Wait until so many claims wait in the server."""
    until = time.monotonic() + 60
    while await asyncio.to_thread(_waiting, served.server.address.url) != number:
        if time.monotonic() > until:
            raise TimeoutError("the claims do not wait")
        await asyncio.sleep(0.2)


def _waiting(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("orchestrator_waiting_claims "))


# --- Executions -------------------------------------------------------------------------------------------------------


def lifecycles(cluster: Cluster, sizes: Sizes) -> dict[str, Any]:
    """Return the executions a second over channels and over HTTP, in turns, and what each takes of a core."""
    spec = runners.new_spec(0)
    hired = runners.hired(sizes.clients, [spec])  # as many clients: each gets its share of the threads
    jobs = int(sizes.filled / 5 * (sizes.seconds / 2 + SLICES))
    RunnerTenant().fill(spec, jobs)
    workers = tenants.settled(POOL, organizations=[], workers=sizes.clients)
    tenants.fill("acme", POOL, jobs)
    found: dict[str, list[dict[str, Any]]] = {"channel": [], "http": []}
    with _served(cluster) as served:
        for _ in range(SLICES):
            found["channel"].append(uvloop.run(_channel_lifecycles(served, hired, sizes)))
            found["http"].append(uvloop.run(_http_lifecycles(served, workers, sizes)))
    return {
        kind: {name: round(statistics.mean(one[name] for one in slices), 3) for name in slices[0]}
        for kind, slices in found.items()
    }


async def _channel_lifecycles(served: ServedCluster, hired: list[Worker], sizes: Sizes) -> dict[str, Any]:
    lines = await served.lines(hired, sizes.clients)
    tally = Tally.of(warmup=1, seconds=sizes.seconds / 2 / SLICES)

    async def execute(line: ChannelConnection) -> None:
        while not tally.is_over:
            uuid = await _begin(line)
            await _acknowledged(line, uuid, "heartbeat")
            await _acknowledged(line, uuid, "completed", job=uuid, results=RESULTS)
            tally.add()
        line.close()

    found, *_ = await asyncio.gather(served.during(tally), *map(execute, lines))
    return found


async def _http_lifecycles(served: ServedCluster, workers: tenants.Tenants, sizes: Sizes) -> dict[str, Any]:
    tally = Tally.of(warmup=1, seconds=sizes.seconds / 2 / SLICES)

    async def execute(worker: tuple[str, str]) -> None:
        caller = served.caller(worker, tally)
        while not tally.is_over:
            lease = await caller.claim()
            assert lease is not None, "no job waits"
            for operation, body in STEPS:
                await caller.report(operation, lease["lease_id"], body)
            tally.add()
        caller.connection.close()

    found, *_ = await asyncio.gather(served.during(tally), *map(execute, workers.workers))
    return found


# --- Memory -----------------------------------------------------------------------------------------------------------


def memory(cluster: Cluster, sizes: Sizes, kind: str) -> dict[str, Any]:
    """Return the memory of a new process with waiting channels or long polls: of each beyond the first few."""
    cluster.emptied()
    many = sizes.polls
    hired = runners.hired(-(-many // MOST_CHANNELS), [runners.new_spec(0)])
    workers = tenants.settled(POOL, organizations=[], workers=len(hired))
    with _served(cluster) as served:
        return uvloop.run(_memory(served, hired, workers, many, kind))


async def _memory(
    served: ServedCluster, hired: list[Worker], workers: tenants.Tenants, many: int, kind: str
) -> dict[str, Any]:
    held: asyncio.Queue[float] = asyncio.Queue()
    finished: asyncio.Queue[None] = asyncio.Queue()
    waiting: list[asyncio.Task[None]] = []
    resident = []
    for number in (FEW, many):
        added = number - len(waiting)
        if kind == "channel":
            waiting += [asyncio.create_task(_take(line, held, finished)) for line in await served.lines(hired, added)]
        else:
            turns = itertools.islice(itertools.cycle(workers.workers), added)
            waiting += [asyncio.create_task(_poll(served, worker, held, finished)) for worker in turns]
        await _until_waiting(served, number)
        await asyncio.sleep(1)
        resident.append(_resident_kib(served.server.pids[0]))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    few, all_of_them = resident
    each = (all_of_them - few) / (many - FEW)
    return {"waiting": many, "mib_before": round(few / 1024, 1), "kib_each": round(each, 1)}


def _resident_kib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


# --- Hardware specs ---------------------------------------------------------------------------------------------------


def specs(sizes: Sizes) -> dict[str, Any]:
    """Return the milliseconds of a claim by a runner with many specs and by one with one spec, in turns."""
    hardware = [runners.new_spec(number) for number in range(1 + MANY_SPECS)]
    one, many = runners.hired_as("one-spec", hardware[:1]), runners.hired_as("many-specs", hardware[1:])
    tenant = RunnerTenant()
    for place, spec in enumerate(hardware):
        tenant.fill(spec, MANY_SPECS if place == 0 else ROUND)
    seconds: dict[str, list[float]] = {"one_ms": [], "many_ms": []}
    for turn in range(max(2, sizes.samples // ROUND)):
        for name, runner in (("one_ms", one), ("many_ms", many)):
            taken = [_claim_seconds(runner) for _ in range(ROUND)]
            seconds[name] += taken if turn else []
    return {name: round(statistics.median(found) * 1000, 3) for name, found in seconds.items()}


def _claim_seconds(runner: Worker) -> float:
    began = time.perf_counter()
    found = claim_for_runner(runner)
    seconds = time.perf_counter() - began
    assert found.claimed is not None, runner.slug
    heartbeat.release(lease_ulid=found.claimed.lease.lease_ulid, worker=runner)
    Job.objects.filter(pk=found.claimed.job.pk).update(release_count=0)
    return seconds
