"""Runs procrastinate on the same PostgreSQL: jobs are deferred, then one worker runs their empty task.

All in one process, without HTTP between. Runs in the peers' environment: `… URL JOBS`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import procrastinate

from benchmarks.peers.running import rate, say

BATCH = 500
# Name: tasks at a time, and the options of its connector; none is its default.
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "10": (10, {}),
    "32": (32, {}),
    "32, pool of 32": (32, {"min_size": 32, "max_size": 32}),
}


def application(url: str, options: dict[str, Any]) -> procrastinate.App:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, **options))
    app.task(name="empty")(_empty)
    return app


async def _empty() -> None:
    pass


async def deferred_singly(app: procrastinate.App, jobs: int, at_once: int) -> None:
    task, rest = app.tasks["empty"], iter(range(jobs))

    async def some() -> None:
        for _ in rest:
            await task.defer_async()

    await asyncio.gather(*(some() for _ in range(at_once)))


async def deferred_in_batches(app: procrastinate.App, jobs: int) -> None:
    for start in range(0, jobs, BATCH):
        await app.tasks["empty"].batch_defer_async(*[{} for _ in range(min(BATCH, jobs - start))])


async def timed(awaited: Any) -> float:
    began = time.monotonic()
    await awaited
    return time.monotonic() - began


async def measured(url: str, jobs: int, at_once: int, options: dict[str, Any]) -> dict[str, float]:
    """Jobs a second from the first defer to the last end, deferred singly and in batches; and of each part."""
    async with application(url, options).open_async() as app:
        work = {"wait": False, "concurrency": at_once}
        singly = await timed(deferred_singly(app, jobs, at_once))
        first = await timed(app.run_worker_async(**work))
        batches = await timed(deferred_in_batches(app, jobs))
        second = await timed(app.run_worker_async(**work))
    return {
        "jobs_per_s": rate(jobs, singly + first),
        "bulk_jobs_per_s": rate(jobs, batches + second),
        "run_per_s": rate(2 * jobs, first + second),
        "defers_per_s": rate(jobs, singly),
        "bulk_defers_per_s": rate(jobs, batches),
    }


async def main(url: str, jobs: int) -> None:
    async with application(url, {}).open_async() as app:
        await app.schema_manager.apply_schema_async()
    found = {name: await measured(url, jobs, at_once, options) for name, (at_once, options) in SETTINGS.items()}
    best = {figure: max(row[figure] for row in found.values()) for figure in ("jobs_per_s", "bulk_jobs_per_s")}
    say(**best, settings=found)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
