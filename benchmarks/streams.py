"""Measures streams of events: how late they arrive, and what they cost the calls beside them.

All streams are open on one process of the server (`asgi-1`). First the log of a run is followed, before any listener of
events: their reader polls the database. Then ten tenants have listeners, and writers commit 100 events a second; each
listener receives those of its tenant. Then lifecycles of these tenants over HTTP, with a thousand listeners and without
any, in turns; each turn has a new server, because a reader still polls for a while after its last listener.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

from django.db import connection

from benchmarks import processors, servers, tenants
from benchmarks.environment import OURS, Cluster
from benchmarks.event_listeners import EVENTS_PATH, ListenPlan, listening
from benchmarks.event_writers import WritePlan, written
from benchmarks.load import LoadPlan, begun
from benchmarks.sizes import Sizes
from orchestrator.services.claiming import Claimed
from orchestrator.services.submission import submit
from orchestrator.step_logs import job_log_writes
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.payload import PACK_RUN, PayloadSpec
from tests.factories import ALICE, TIMINGS, WorkerFactory, claimed, submission
from tests.packs import simple_payload

LAYOUT = "asgi-1"
POOL = "streams"
TENANTS = tuple(f"streams-{number}" for number in range(10))
LISTENERS = (1, 100, 1_000)
PER_SECOND = 100  # events
FOLLOWERS = (1, 500)  # of one run
CHUNKS_PER_SECOND = 10
ALL_ARRIVE_WITHIN = 20.0
# A statement of the server is a transaction of its own, except in operations. A busy session reports its transactions
# once a second, one that became idle after ten seconds: those of the requests that opened the streams do not count.
BUSY_REPORTS, IDLE_REPORTS = 1.5, 11.0
STATEMENTS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
MANY_STREAMS = {"STREAMS_PER_CALLER": "1000", "STREAMS_PER_ORGANIZATION": "1000"}


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `sse_ms` (p99 by the number of listeners), `sse_cost` and `log_followers_cost`; `streams` has the rest."""
    tenant = tenants.settled(POOL, organizations=list(TENANTS), workers=sizes.clients)
    tokens = list(tenant.tokens.values())
    seconds = max(3.0, sizes.seconds / 2)
    with servers.serving(cluster, LAYOUT, **MANY_STREAMS) as server:
        followed = {str(count): _followed(cluster, server, tokens[0], count, seconds) for count in FOLLOWERS}
        delays = {str(count): _delays(cluster, server, tokens[: min(count, 10)], count, seconds) for count in LISTENERS}
    order = [place % 4 in {1, 2} for place in range(2 * sizes.rounds)]  # without, with, with, without
    turns = [_turn(cluster, sizes, tenant, seconds, is_listened=is_listened) for is_listened in order]
    return {
        "sse_ms": {count: found["delay_ms"]["p99"] for count, found in delays.items()},
        "sse_cost": cost_of(turns),
        "log_followers_cost": round(followed["500"] / followed["1"], 2),
        "streams": {"listeners": delays, "turns": turns, "statements_per_s": followed},
    }


def _delays(cluster: Cluster, server: servers.Serving, tokens: list[str], count: int, seconds: float) -> dict[str, Any]:
    """Return the delays of events at so many listeners, each of one of the tokens' tenants."""
    plan = WritePlan(TENANTS[: len(tokens)], POOL, PER_SECOND, seconds)
    with listening(_plan(server, tokens, count)) as listeners:
        used = processors.Used(_processes(cluster, server) | {"listeners": [listeners.process.pid]})
        events = len(written(plan)["at"])
        busy = used.shares()
        found = listeners.report(events * (count // len(tokens)), within=ALL_ARRIVE_WITHIN)
    if found["events"] != events * (count // len(tokens)) or found["gaps"] or found["ended"]:
        raise RuntimeError(f"{count} listeners of {len(tokens)} tenants, {events} events: {found}")
    return found | {"committed_per_s": round(events / seconds, 1), "processors": busy}


def _processes(cluster: Cluster, server: servers.Serving) -> dict[str, list[int]]:
    return {"server": server.pids, "PostgreSQL": processors.of_postgres(cluster)}


def _plan(server: servers.Serving, tokens: list[str], count: int, *, counts_only: bool = False) -> ListenPlan:
    streams = [(EVENTS_PATH, tokens[number % len(tokens)]) for number in range(count)]
    return ListenPlan(server.address.host, server.address.port, streams, counts_only)


def _turn(
    cluster: Cluster, sizes: Sizes, tenant: tenants.Tenants, seconds: float, *, is_listened: bool
) -> dict[str, Any]:
    """Return lifecycles/s of all tenants, with listeners or without, and the events/s that these received."""
    tokens = list(tenant.tokens.values())
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(servers.serving(cluster, LAYOUT))
        stack.enter_context(servers.scheduler(cluster))
        plan = _plan(server, tokens, LISTENERS[-1], counts_only=True)
        listeners = stack.enter_context(listening(plan)) if is_listened else None
        load = begun(
            LoadPlan(
                "lifecycles",
                server.address.host,
                server.address.port,
                sizes.clients,
                seconds=seconds,
                warmup=sizes.warmup,
                workers=tenant.workers,
                tokens=tokens,
                bodies=[tenants.body(organization) for organization in TENANTS],
            )
        )
        time.sleep(sizes.warmup + seconds / 4)  # all connections are open
        used = processors.Used(
            _processes(cluster, server) | ({"listeners": [listeners.process.pid]} if listeners else {})
        )
        time.sleep(seconds / 2)
        busy = used.shares()
        tally = load.tally()
        if tally["surprises"] or not tally["rate"]:
            raise RuntimeError(f"lifecycles: {tally['counts']} {tally['surprises']}")
        received = listeners.report() if listeners else {}
    return {
        "is_listened": is_listened,
        "lifecycles_per_s": tally["rate"],
        "calls": tally["calls"],
        "processors": busy,
        **received,
    }


def cost_of(turns: list[dict[str, Any]]) -> float:
    """Return lifecycles/s with listeners ÷ without: the median of the pairs of turns that follow each other."""
    pairs = [
        {turn["is_listened"]: turn["lifecycles_per_s"] for turn in turns[at : at + 2]} for at in range(0, len(turns), 2)
    ]
    return round(statistics.median(pair[True] / pair[False] for pair in pairs), 2)


def _followed(cluster: Cluster, server: servers.Serving, token: str, count: int, seconds: float) -> float:
    """Return the statements/s of the database while a run has so many followers and its log grows."""
    claim = _new_run()
    path = f"/runs/{uuid_of(claim.job.job_ulid)}/logs"
    with contextlib.ExitStack() as stack:
        plan = ListenPlan(server.address.host, server.address.port, [(path, token)] * count, counts_only=True)
        listeners = stack.enter_context(listening(plan))
        with _growing(claim):
            time.sleep(IDLE_REPORTS if count > 1 else BUSY_REPORTS)
            before, began = _statements(cluster), time.monotonic()
            time.sleep(max(6.0, seconds))
            rate = (_statements(cluster) - before) / (time.monotonic() - began)
        found = listeners.report(count * CHUNKS_PER_SECOND)
        if found["ended"] or found["events"] < count * CHUNKS_PER_SECOND:
            raise RuntimeError(f"{count} followers: {found}")
    return round(rate, 1)


def _new_run() -> Claimed:
    """Return the lease of a new pack run whose log has a first chunk."""
    project = tenants.project(TENANTS[0], POOL)
    spec = PayloadSpec(PACK_RUN, simple_payload(project.organization), timeout_seconds=600)
    submit(
        submission(project, spec),
        policy=JOB_TYPES[PACK_RUN].policy(**TIMINGS),
        default_pool=POOL,
        actor=ALICE,
    )
    found = claimed(WorkerFactory(pool__slug=POOL), job_types=(PACK_RUN,))
    _append(found, 0)
    return found


def _append(claim: Claimed, number: int) -> None:
    job_log_writes.append_log(
        lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, seq=number, chunk=f"{number}\n".encode()
    )


@contextlib.contextmanager
def _growing(claim: Claimed) -> Iterator[None]:
    """Append chunks to the log of a run during the block."""
    over = threading.Event()

    def append() -> None:
        number = 1
        while not over.wait(1 / CHUNKS_PER_SECOND):
            _append(claim, number)
            number += 1
        connection.close()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _statements(cluster: Cluster) -> int:
    with cluster.superuser("postgres") as session:
        found = session.execute(STATEMENTS, [OURS]).fetchone()
        assert found is not None
        return int(found[0])
