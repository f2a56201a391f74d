"""Measures what one call of each kind costs the server's process, without a network: `python -m benchmarks.calls`.

The application is called within this process, one call at a time, so `process_time` is the processor's time of Python
alone: neither clients nor PostgreSQL are in it, and neighbours on the machine count little."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections import defaultdict
from typing import Any

from benchmarks import processors
from benchmarks.environment import Stage, opened

ROUNDS = int(os.environ.get("ROUNDS", "300"))
WARMUP = 30
COMPLETED = {"result": {"status": "succeeded", "exit_code": 0}}


class Calls:
    """`spent`: milliseconds of each call by its name."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.spent: dict[str, list[float]] = defaultdict(list)

    async def post(self, name: str, path: str, body: Any, token: str) -> Any:
        content = json.dumps(body).encode()
        told: dict[str, Any] = {"body": b""}

        async def receive() -> dict[str, Any]:
            if "asked" in told:
                await asyncio.sleep(60)
            told["asked"] = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                told["status"] = message["status"]
            else:
                told["body"] += message.get("body", b"")

        began = time.process_time()
        await self.application(_scope(path, token, len(content)), receive, send)
        self.spent[name].append((time.process_time() - began) * 1000)
        assert told["status"] in {200, 201}, told
        return json.loads(told["body"])


def _scope(path: str, token: str, length: int) -> dict[str, Any]:
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "content-length": str(length),
        "authorization": f"Bearer {token}",
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8000),
    }


async def lifecycles(calls: Calls, token: str, worker: tuple[str, str], body: dict[str, Any], rounds: int) -> None:
    offer = {"worker_id": worker[0], "job_types": ["steps"], "acknowledge": True}
    for _ in range(rounds):
        await calls.post("submit", "/v1/jobs", body, token)
        lease = await calls.post("claim", "/v1/runtime/leases", offer, worker[1])
        path = f"/v1/runtime/leases/{lease['lease_id']}/"
        for verb, said in (("acknowledge", {}), ("heartbeat", {"phase": "executing"}), ("complete", COMPLETED)):
            await calls.post(verb, path + verb, said, worker[1])


def main() -> None:
    stage = opened()
    from benchmarks import tenants  # noqa: PLC0415 - after the settings
    from config.asgi import application  # noqa: PLC0415 - likewise

    crew = tenants.settled("calls", organizations=["acme"], workers=1)
    calls = Calls(application)
    asyncio.run(lifecycles(calls, crew.tokens["acme"], crew.workers[0], tenants.body("acme"), WARMUP))
    calls.spent.clear()
    before = _of_postgres(stage)
    asyncio.run(lifecycles(calls, crew.tokens["acme"], crew.workers[0], tenants.body("acme"), ROUNDS))
    for name, spent in calls.spent.items():
        print(f"{name:12} {statistics.median(spent):6.2f} ms")
    print(f"{'together':12} {sum(map(statistics.median, calls.spent.values())):6.2f} ms")
    print(f"{'PostgreSQL':12} {(_of_postgres(stage) - before) / ROUNDS * 1000:6.2f} ms a lifecycle")


def _of_postgres(stage: Stage) -> float:
    """Seconds of all its processes since each began."""
    return sum(map(processors.spent, processors.of_postgres(stage)))


if __name__ == "__main__":
    main()
