"""Runs pgqueuer on the same PostgreSQL: jobs are enqueued in batches, then one manager runs their empty entrypoint.

All in one process, without HTTP between. Runs in the peers' environment: `… URL JOBS`.
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers.running import rate, say

BATCH = 500
TAKEN = 50  # jobs that one look of its manager takes


async def main(url: str, jobs: int) -> None:
    async with asyncpg.create_pool(url, min_size=2, max_size=10) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        manager = QueueManager(queries)

        @manager.entrypoint("empty")
        async def _empty(_job: Job) -> None:
            pass

        began = time.monotonic()
        for start in range(0, jobs, BATCH):
            some = min(BATCH, jobs - start)
            await queries.enqueue(["empty"] * some, [None] * some, [0] * some)
        enqueued = time.monotonic()
        await manager.run(batch_size=TAKEN, mode=QueueExecutionMode.drain)
        ended = time.monotonic()
    say(bulk_jobs_per_s=rate(jobs, ended - began), run_per_s=rate(jobs, ended - enqueued))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
