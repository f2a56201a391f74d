"""Compares two ways to wake the reader of events: polling every 50 ms, and NOTIFY after each commit.

`python -m benchmarks.event_wakeups` takes about five minutes. It prints the table of the decision record 85 and, as its
last line, all rounds as JSON. Writers are threads of another process and submit jobs; the reader with its one listener
is this process. With NOTIFY the writers announce their commits, at most every 25 ms in a transaction of its own, and
the reader polls once a second besides.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from benchmarks import environment, processors
from benchmarks.event_writers import WritePlan, Writers

CHANNEL = "event_feed"
FALLBACK_INTERVAL = 1.0
WAYS = ("polling", "notify")
LOADS: dict[str, float | None] = {"idle": None, "100/s": 100.0, "as many as possible": 0.0}  # events/s; 0: no limit
SECONDS, ROUNDS = 10.0, 3
ORGANIZATION, POOL = "wakeups", "wakeups"
COLUMNS = {
    "p50_ms": "commit → listener, p50, ms",
    "p99_ms": "p99, ms",
    "per_s": "commits/s",
    "reader": "cores of the reader's process",
    "machine": "cores of all processes",
}


def main() -> int:
    """Measure both ways by turns. Returns the exit code."""
    environment.opened()
    from benchmarks import tenants  # noqa: PLC0415 - after the settings

    tenants.settled(POOL, organizations=[ORGANIZATION], workers=1)
    seconds = float(os.environ.get("SECONDS") or SECONDS)
    found: dict[str, list[dict[str, float]]] = {f"{load}: {way}": [] for load in LOADS for way in WAYS}
    for turn in range(int(os.environ.get("ROUNDS") or ROUNDS)):
        for load, rate in LOADS.items():
            for way in WAYS[:: -1 if turn % 2 else 1]:
                found[f"{load}: {way}"].append(asyncio.run(_listen(way, rate, seconds)))
    sys.stdout.write("\n".join([*_table(found), json.dumps(found), ""]))
    return 0


def _table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return the medians as markdown."""
    head = ["events", *COLUMNS.values()]
    lines = [head, ["---", *["---:"] * len(COLUMNS)]]
    for name, rounds in found.items():
        medians = [sorted(one.get(column, 0.0) for one in rounds)[len(rounds) // 2] for column in COLUMNS]
        lines.append([name, *(f"{value:,.2f}".rstrip("0").rstrip(".") if value else "" for value in medians)])
    return [f"| {' | '.join(line)} |" for line in lines]


async def _listen(way: str, rate: float | None, seconds: float) -> dict[str, float]:
    """Return the milliseconds from each commit to its listener, the commits/s of the writers, and the cores in use."""
    from orchestrator.events import reader as event_reader  # noqa: PLC0415 - after the settings
    from orchestrator.events.channels import EventFilter  # noqa: PLC0415 - likewise

    interval = event_reader.POLL_INTERVAL
    reader = event_reader.EventReader()
    listening = asyncio.create_task(_wake(reader)) if way == "notify" else None
    event_reader.POLL_INTERVAL = FALLBACK_INTERVAL if listening else interval  # type: ignore[misc]
    items = reader.listen(frozenset({ORGANIZATION}), EventFilter(), after=None, idle_seconds=1.0)
    try:
        await anext(items)
        used = processors.Used({"reader": [os.getpid()]})
        return (await _idle(seconds) if rate is None else await _receive(items, way, rate, seconds)) | used.shares()
    finally:
        await items.aclose()
        if listening:
            listening.cancel()
        event_reader.POLL_INTERVAL = interval  # type: ignore[misc]


async def _idle(seconds: float) -> dict[str, float]:
    await asyncio.sleep(seconds)
    return {}


async def _receive(items: Any, way: str, rate: float, seconds: float) -> dict[str, float]:
    from orchestrator.events.reader import Gap  # noqa: PLC0415 - after the settings

    received: dict[str, float] = {}
    writers = Writers(WritePlan([ORGANIZATION], POOL, rate, seconds, CHANNEL if way == "notify" else ""))
    written = asyncio.create_task(asyncio.to_thread(writers.result))
    async for item in items:
        assert not isinstance(item, Gap), item
        now = time.monotonic()
        received |= {str(entry.root_job_id): now for entry in item.entries}
        if written.done() and len(received) >= len(written.result()["at"]):
            break
    result = written.result()
    delays = sorted(1000 * (received[job] - at) for job, at in result["at"].items())
    return {
        "p50_ms": delays[len(delays) // 2],
        "p99_ms": delays[int(len(delays) * 0.99)],
        "per_s": len(delays) / result["seconds"],
    }


async def _wake(reader: Any) -> None:
    """Let the reader poll at each notification."""
    import psycopg  # noqa: PLC0415 - only for one of the ways
    from django.db import connections  # noqa: PLC0415 - after the settings

    params = connections["default"].get_connection_params() | {"cursor_factory": psycopg.AsyncCursor}
    async with await psycopg.AsyncConnection.connect(**params, autocommit=True) as session:
        await session.execute(f"LISTEN {CHANNEL}")
        async for _ in session.notifies():
            reader.poll_now()


if __name__ == "__main__":
    sys.exit(main())
