"""Measures deliveries to webhooks: against the same client without a database, and beside a receiver that is silent.

The receiver is a process of its own, which answers 204 at once, and never below `/silent`. It records when each event
arrived. 49 webhooks with ten places each have deliveries of 1 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import requests
from django.conf import settings

from benchmarks import servers
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator.core.cause import Cause
from orchestrator.webhooks.models import Delivery, Webhook
from orchestrator.webhooks.operations import WebhookTerms, create_webhook
from orchestrator.webhooks.sender import Message, Sender
from orchestrator.webhooks.signatures import new_key
from runtime_jobs.db_time import database_now
from tests.factories import ALICE, OrganizationFactory

NETWORK = "127.0.0.0/8"
GOOD = 49
PLACES = 10
BODY = json.dumps({"eventType": "job.completed", "payload": {"text": "x" * 900}})
PER_SECOND = 200  # deliveries to the good webhooks, beside the silent one and alone
BATCH_SECONDS = 0.05
ENDS_WITHIN = 120.0
RECEIVER = """
import asyncio, json, sys, time

arrived = {}

async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode("latin-1")
            line, *lines = head.split("\\r\\n")
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
            await reader.readexactly(int(headers.get("content-length", 0)))
            path = line.split()[1]
            if path.startswith("/silent"):
                continue
            body = b""
            if path == "/report":
                body = json.dumps(arrived).encode()
            elif path == "/forget":
                arrived.clear()
            else:
                arrived.setdefault(headers["webhook-id"], time.time())
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return both ratios, with the rates and latencies that they are made of."""
    number = {"full": 20_000, "quick": 4_000}.get(sizes.name, 500)
    os.environ["WEBHOOK_NETWORKS"] = NETWORK  # of the dispatcher
    settings.WEBHOOK_NETWORKS = [NETWORK]
    with _receiver() as url:
        webhooks = [_webhook(f"{url}/hook/{place}") for place in range(GOOD)]
        rates: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(sizes.rounds):
            rates["bare"].append(_bare_rate(url, number))
            rates["ours"].append(_our_rate(cluster, url, webhooks, number))
        alone = _latencies(cluster, url, webhooks, sizes.seconds)
        silent = _webhook(f"{url}/silent")
        _insert([silent] * 2_000)
        beside = _latencies(cluster, url, webhooks, sizes.seconds)
    return {
        "webhooks_vs_bare": round(statistics.median(rates["ours"]) / statistics.median(rates["bare"]), 2),
        "dead_receiver": round(beside["p99_ms"] / alone["p99_ms"], 2),
        "deliveries": {
            "number": number,
            "per_s": {name: [round(rate) for rate in each] for name, each in rates.items()},
            "alone": alone,
            "beside_a_silent_receiver": beside,
        },
    }


@contextlib.contextmanager
def _receiver() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def _webhook(url: str) -> Webhook:
    organization = OrganizationFactory(slug=f"hooks-{uuid4().hex[:12]}")
    return create_webhook(organization=organization, terms=WebhookTerms(url=url), cause=Cause(ALICE))[0]


def _insert(webhooks: list[Webhook]) -> list[str]:
    """Insert a delivery that is due for each entry, and return the ids of the events."""
    now = database_now()
    rows = [
        Delivery(
            webhook=webhook, org_slug="hooks", event_id=uuid4(), event_type="job.completed", body=BODY, due_at=now,
            created_at=now,
        )
        for webhook in webhooks
    ]  # fmt: skip
    Delivery.objects.bulk_create(rows, batch_size=1_000)
    return [str(row.event_id) for row in rows]


def _bare_rate(url: str, number: int) -> float:
    """Return deliveries/s of the same client, which posts the same bodies with as many places and no database."""
    key = new_key()

    async def run() -> float:
        async with Sender() as sender:
            names = iter(range(number))

            async def post() -> None:
                for name in names:
                    message = Message(f"{url}/hook/{name % GOOD}", (key,), str(uuid4()), BODY.encode())
                    result = await sender.send(message)
                    assert result.is_success, result.sentence

            began = time.monotonic()
            await asyncio.gather(*(post() for _ in range(GOOD * PLACES)))
            return number / (time.monotonic() - began)

    return asyncio.run(run())


def _our_rate(cluster: Cluster, url: str, webhooks: list[Webhook], number: int) -> float:
    """Return deliveries/s of a dispatcher between the first and the last arrival of rows that were due before."""
    names = _insert([webhooks[place % GOOD] for place in range(number)])
    with servers.dispatcher(cluster):
        arrived = _arrivals(url, names)
    return (number - 1) / max(1e-3, max(arrived.values()) - min(arrived.values()))


def _latencies(cluster: Cluster, url: str, webhooks: list[Webhook], seconds: float) -> dict[str, float]:
    """Return the times from the insertion of a delivery to its arrival, at a constant rate of insertions."""
    inserted: dict[str, float] = {}
    with servers.dispatcher(cluster):
        _arrivals(url, _insert(webhooks))  # it is running, and its connections are open
        until, place = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            began, size = time.monotonic(), round(PER_SECOND * BATCH_SECONDS)
            batch = [webhooks[(place + offset) % GOOD] for offset in range(size)]
            at = time.time()
            inserted |= dict.fromkeys(_insert(batch), at)
            place += size
            time.sleep(max(0.0, began + BATCH_SECONDS - time.monotonic()))
        arrived = _arrivals(url, list(inserted))
    each = sorted(1000 * (arrived[name] - at) for name, at in inserted.items())
    return {"p50_ms": round(each[len(each) // 2], 1), "p99_ms": round(each[int(len(each) * 0.99)], 1)}


def _arrivals(url: str, names: list[str]) -> dict[str, float]:
    """Wait until all events have arrived, and return the time of each."""
    until = time.monotonic() + ENDS_WITHIN
    while time.monotonic() < until:
        found = requests.get(f"{url}/report", timeout=30).json()
        if all(name in found for name in names):
            requests.get(f"{url}/forget", timeout=30)
            return {name: found[name] for name in names}
        time.sleep(0.2)
    raise AssertionError("not all deliveries arrived")
