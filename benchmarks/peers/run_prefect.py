"""Runs Prefect's server on the same PostgreSQL, called over its HTTP API by the same clients as the product.

A flow run is created as scheduled, then set to pending, running and completed. That is nearest to our submit, claim,
acknowledge and complete; it has no heartbeat.

`python -m benchmarks.peers.run_prefect URL FOLDER PYTHON CLIENTS SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.histogram import Tally
from benchmarks.peers.running import answers_http, free_port, part, say
from benchmarks.wire import Connection

STEPS = ("PENDING", "RUNNING", "COMPLETED")
WARMUP = 2.0


def environment(url: str, folder: Path) -> dict[str, str]:
    """Return its default settings, on PostgreSQL, without telemetry and without its pages."""
    return os.environ | {
        "PREFECT_HOME": str(folder),
        "PREFECT_API_DATABASE_CONNECTION_URL": url.replace("postgres://", "postgresql+asyncpg://", 1),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }


class PrefectClient:
    def __init__(self, port: int, tally: Tally) -> None:
        self.connection, self.tally = Connection("127.0.0.1", port), tally

    async def call(self, name: str, path: str, body: Any) -> Any:
        began = time.monotonic()
        status, answer = await self.connection.post(f"/api{path}", body)
        self.tally.called(name, began)
        if status not in {200, 201} or answer.get("status", "ACCEPT") != "ACCEPT":
            raise SystemExit(f"{name}: {status} {str(answer)[:300]}")
        return answer

    async def lifecycles(self, flow: str) -> None:
        while not self.tally.is_over:
            run = await self.call("create", "/flow_runs/", {"flow_id": flow, "state": {"type": "SCHEDULED"}})
            if self.tally.is_over:
                return
            for state in STEPS:
                await self.call(state.lower(), f"/flow_runs/{run['id']}/set_state", {"state": {"type": state}})
            self.tally.add()

    async def submits(self, flow: str) -> None:
        while not self.tally.is_over:
            await self.call("create", "/flow_runs/", {"flow_id": flow, "state": {"type": "SCHEDULED"}})
            self.tally.add()


async def measure(port: int, clients: int, seconds: float) -> None:
    tally = Tally.of(warmup=WARMUP, seconds=seconds)
    flow = (await PrefectClient(port, tally).call("flow", "/flows/", {"name": "bench"}))["id"]
    await asyncio.gather(*(PrefectClient(port, tally).lifecycles(flow) for _ in range(clients)))
    submits = Tally.of(warmup=0, seconds=seconds / 2)
    await asyncio.gather(*(PrefectClient(port, submits).submits(flow) for _ in range(clients)))
    result = tally.summary()
    say(lifecycles_per_s=result["rate"], submits_per_s=submits.summary()["rate"], calls=result["calls"])


def main(url: str, folder: str, python: str, clients: str, seconds: str) -> None:
    home, port = Path(folder), free_port()
    home.mkdir(parents=True, exist_ok=True)
    own = environment(url, home)
    with (home / "server.log").open("ab") as log:
        subprocess.run([python, "-m", "benchmarks.peers.prefect_tables"], env=own, stdout=log, stderr=log, check=True)
    command = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    health = f"http://127.0.0.1:{port}/api/health"
    with part(command, home / "server.log", lambda: answers_http(health), own):
        asyncio.run(measure(port, int(clients), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
