"""Runs awa on the same PostgreSQL: jobs are inserted, then one client works their empty task.

All in one process, without HTTP between. Runs in the peers' environment: `… URL JOBS`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import awa

from benchmarks.peers.running import rate, say

BATCH = 500
INSERTERS = 16
WITHIN = 60.0  # seconds for all jobs of one setting
# Name: workers of the queue, and its loops that claim.
SETTINGS = {"32": (32, 1), "128": (128, 1), "128, two claimers": (128, 2)}


@dataclass
class Empty:
    """The argument of a job that does nothing."""

    number: int


async def inserted_singly(client: Any, queue: str, jobs: int) -> None:
    rest = iter(range(jobs))

    async def some() -> None:
        for number in rest:
            await client.insert(Empty(number), queue=queue)

    await asyncio.gather(*(some() for _ in range(INSERTERS)))


async def inserted_in_batches(client: Any, queue: str, jobs: int) -> None:
    for start in range(0, jobs, BATCH):
        batch = [Empty(number) for number in range(start, min(start + BATCH, jobs))]
        await client.enqueue_many_copy(batch, queue=queue)


async def timed(
    url: str, queue: str, jobs: int, setting: tuple[int, int], insert: Callable[[Any, str, int], Awaitable[None]]
) -> float:
    """Return the jobs per second from the first insert until the last one has been run and its client has stopped."""
    client = awa.AsyncClient(url, max_connections=20)
    done, all_done = 0, asyncio.Event()

    @client.task(Empty, queue=queue)
    async def _empty(_job: Any) -> None:
        nonlocal done
        done += 1
        if done >= jobs:
            all_done.set()

    began = time.monotonic()
    await insert(client, queue, jobs)
    workers, claimers = setting
    await client.start([{"name": queue, "max_workers": workers, "claimers": claimers}], poll_interval_ms=20)
    await asyncio.wait_for(all_done.wait(), WITHIN)
    ran = time.monotonic() - began
    await client.shutdown()
    await client.close()
    return rate(jobs, ran)


async def main(socket_url: str, jobs: int) -> None:
    url = socket_url.replace("@/", "@localhost/", 1)  # its driver wants a host before it reads the socket's folder
    migrating = awa.AsyncClient(url)
    await migrating.migrate()
    await migrating.install_queue_storage()  # its storage since 0.6, which a new installation begins with
    await migrating.close()
    found: dict[str, dict[str, float]] = {}
    for place, (name, setting) in enumerate(SETTINGS.items()):
        found[name] = {
            "jobs_per_s": await timed(url, f"singly-{place}", jobs, setting, inserted_singly),
            "bulk_jobs_per_s": await timed(url, f"batches-{place}", jobs, setting, inserted_in_batches),
        }
    best = {figure: max(row[figure] for row in found.values()) for figure in ("jobs_per_s", "bulk_jobs_per_s")}
    say(**best, settings=found)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
