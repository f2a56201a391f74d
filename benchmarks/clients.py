"""Flows that one client repeats until the time is over. `load` runs many of them in one process."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any

from benchmarks.callers import COMPLETED, TenantCaller, Unexpected
from benchmarks.histogram import Tally

IDLE = 0.02  # seconds that a worker without work waits before it claims again
BATCH = 256  # jobs of one batch submit
LEASES = 64  # of one claim
LOG_CHUNK = 4 << 10
LONG_POLL = 2  # seconds for which a claim of a paced load waits


@dataclass
class LoadClient:
    """Represents one tenant and its worker; clients that only claim have several workers, so that none gets full."""

    number: int
    tenant: TenantCaller
    workers: list[Any]  # WorkerCaller, in a flow of runners RunnerCaller
    bodies: list[dict[str, Any]]
    tally: Tally

    @property
    def worker(self) -> Any:
        return self.workers[0]


async def lifecycles(client: LoadClient) -> None:
    """Submit, claim, acknowledge, heartbeat, complete: five calls, each of them a commit."""
    for body in _until_over(client, cycle(client.bodies)):
        await client.tenant.submit(body)
        lease = await _claim(client)
        if lease is None:
            return
        await _finish(client, lease)


async def three_calls(client: LoadClient) -> None:
    """Submit, claim without the promise to acknowledge, complete: each a commit."""
    for body in _until_over(client, cycle(client.bodies)):
        await client.tenant.submit(body)
        lease = await _claim(client, acknowledge=False)
        if lease is None:
            return
        await client.worker.report("complete", lease["lease_id"], COMPLETED)
        client.tally.add()


async def two_calls(client: LoadClient) -> None:
    """Submit, and complete the lease before with `claim_next`: each a commit. The last lease is completed too."""
    lease: dict[str, Any] | None = None
    for body in _until_over(client, cycle(client.bodies)):
        await client.tenant.submit(body)
        if lease is None:  # at the start, and after a completion that another client's claim left without a job
            lease = await _claim(client, acknowledge=False)
            continue
        lease = await client.worker.complete_and_claim(lease["lease_id"])
        client.tally.add()
        client.tally.counts["empty"] += lease is None
    if lease is not None:
        await client.worker.report("complete", lease["lease_id"], COMPLETED)


async def paced(client: LoadClient) -> None:
    """Begin a lifecycle of five calls at constant intervals, in which other clients begin theirs.

    Records when each job was submitted and leased, and the seconds of each claim, which waits if another client was
    faster. A lifecycle that is due during the one before begins at once after it.
    """
    tally, facts = client.tally, client.tally.facts
    begins = facts.setdefault("began", time.monotonic())
    for number, body in zip(_until_over(client, count()), cycle(client.bodies), strict=False):
        due = begins + (number + client.number / facts["clients"]) * facts["every"]
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if tally.is_over:
            return
        counts = tally.begins <= (sent := time.monotonic()) < tally.ends
        job = await client.tenant.submit(body)
        asked = time.monotonic()
        while (lease := await client.worker.claim(wait_seconds=LONG_POLL)) is None:
            tally.counts["empty"] += 1
            if tally.is_over:
                return
        leased = time.monotonic()
        facts["leased"][lease["job"]["job_id"]] = leased
        if counts:
            facts["submitted"][job] = sent
            facts["claims"].append(leased - asked)
        await _finish(client, lease)


async def many(client: LoadClient) -> None:
    """Run five operations by batch calls: eight calls for 256 jobs, as many as a worker may hold. End each round."""
    worker = client.worker
    for body in _until_over(client, cycle(client.bodies)):
        await client.tenant.submit_many([body] * BATCH)
        held = [lease["lease_id"] for _ in range(BATCH // LEASES) for lease in await worker.claim_many(LEASES)]
        if not held:
            client.tally.counts["empty"] += 1
            await asyncio.sleep(IDLE)
            continue
        await worker.report_many("acknowledge", held)
        await worker.report_many("heartbeat", held, {"phase": "executing"})
        client.tally.add(await worker.report_many("complete", held, COMPLETED))


async def claims(client: LoadClient) -> None:
    """Claim only, one job each, by one worker after the other."""
    for worker in _until_over(client, cycle(client.workers)):
        if await worker.claim() is None:
            client.tally.counts["empty"] += 1
            await asyncio.sleep(IDLE)
        else:
            client.tally.add()


async def claims_many(client: LoadClient) -> None:
    """Claim only, several jobs each; a worker that is full gets nothing and the next one claims."""
    for worker in _until_over(client, cycle(client.workers)):
        leases = await worker.claim_many(LEASES)
        client.tally.add(len(leases))
        client.tally.counts["empty"] += not leases


async def heartbeats(client: LoadClient) -> None:
    """Send heartbeats about one lease, each with a new progress, which is stored."""
    lease = await _claim(client)
    if lease is None:
        return
    for number in _until_over(client, count()):
        progress = {"message": f"item {number}"}
        await client.worker.report("heartbeat", lease["lease_id"], {"phase": "executing", "progress": progress})
        client.tally.add()


async def unwritten(client: LoadClient) -> None:
    """Send heartbeats about one lease that change nothing, of which most are not stored."""
    lease = await _claim(client)
    if lease is None:
        return
    for _ in _until_over(client, count()):
        await client.worker.report("heartbeat", lease["lease_id"], {"phase": "executing"})
        client.tally.add()


async def logs(client: LoadClient) -> None:
    """Claim a workflow job as a runner, and append chunks of 4 KiB to the log of its first step."""
    runner, token = client.worker, await client.worker.claim()
    if token is None:
        return
    runner.token = token
    await runner.report("status", "status", {"status": "running"})
    chance = random.Random(client.number)
    lines = b"".join(b"%08x %016x\n" % (n, chance.getrandbits(64)) for n in range(1 << 8))[:LOG_CHUNK]
    chunk = base64.b64encode(lines).decode()
    for number in _until_over(client, count()):
        await runner.report("log", "logs", {"seq": number, "chunk": chunk, "step_id": runner.steps[0]})
        client.tally.add()


async def runner_claims(client: LoadClient) -> None:
    """Claim only, by one runner after the other."""
    for runner in _until_over(client, cycle(client.workers)):
        if await runner.claim() is None:
            client.tally.counts["empty"] += 1
            await asyncio.sleep(IDLE)
        else:
            client.tally.add()


async def drain(client: LoadClient) -> None:
    """Claim and complete until enough has ended.

    Records for each tenant's last job its position in the order of claims and the second in which it ended; when each
    claim was sent, and when its end was answered or nothing was found.
    """
    counts, facts = client.tally.counts, client.tally.facts
    facts.setdefault("began", time.time())
    while not _drained(client.tally):
        asked = time.time()
        lease = await client.worker.claim()
        if lease is None:
            facts["empties"].append((asked, time.time()))
            await asyncio.sleep(IDLE)
            continue
        org, job = lease["job"]["org_slug"], lease["job"]["job_id"]
        facts["asked"][job] = asked
        counts["claimed"] += 1
        facts["place"][org] = counts["claimed"]
        await asyncio.sleep(facts["held"])
        await client.worker.report("complete", lease["lease_id"], COMPLETED)
        facts["ends"][job] = time.time()
        counts[org] += 1
        client.tally.add()
        facts["at"][org] = round(time.monotonic() - client.tally.begins, 3)


def _drained(tally: Tally) -> bool:
    until = tally.facts["until"]
    enough = bool(until) and all(tally.counts[org] >= jobs for org, jobs in until.items())
    return enough or tally.done >= tally.facts["jobs"] or tally.is_over


async def insisting(client: LoadClient) -> None:
    """Run lifecycles in which each call is repeated under its key until it is answered, as a careful client does."""
    for number, body in zip(_until_over(client, count()), cycle(client.bodies), strict=False):
        await insisted_lifecycle(client, body, f"{client.number}-{number}")


async def insisted_lifecycle(client: LoadClient, body: dict[str, Any], key: str) -> None:
    client.tally.facts.setdefault("submitted", []).append(await client.tenant.submit(body, f"submit-{key}"))
    lease = await _claim(client, key)
    if lease is None:
        return
    await _finish(client, lease)


async def _finish(client: LoadClient, lease: dict[str, Any]) -> None:
    for operation, body in (("acknowledge", {}), ("heartbeat", {"phase": "executing"}), ("complete", COMPLETED)):
        await client.worker.report(operation, lease["lease_id"], body)
    client.tally.add()


async def _claim(client: LoadClient, key: str = "", *, acknowledge: bool = True) -> dict[str, Any] | None:
    """Claim until there is a lease: as many jobs as clients wait, and another client may have taken this one's."""
    for attempt in count():
        if client.tally.is_over:
            return None
        claim_key = f"claim-{key}-{attempt}" if key else ""
        lease = await client.worker.claim(claim_key, acknowledge=acknowledge)
        if lease is not None:
            return lease
        client.tally.counts["empty"] += 1
        await asyncio.sleep(IDLE)
    raise AssertionError  # the loop returns


def _until_over(client: LoadClient, things: Iterator[Any]) -> Iterator[Any]:
    for thing in things:
        if client.tally.is_over:
            return
        yield thing


FLOWS: dict[str, Callable[[LoadClient], Awaitable[None]]] = {
    flow.__name__: flow
    for flow in (
        *(lifecycles, three_calls, two_calls, paced, many, claims, claims_many, drain, insisting),
        *(heartbeats, unwritten, logs, runner_claims),
    )
}
RUNNER_FLOWS = frozenset({logs.__name__, runner_claims.__name__})


async def run(flow: str, client: LoadClient) -> None:
    """Repeat the flow after unexpected responses, which the tally counts, until the time is over."""
    while True:
        try:
            await FLOWS[flow](client)
        except Unexpected:
            await asyncio.sleep(IDLE)
            if not client.tally.is_over:
                continue
        return
