"""A worker's bench around the strict null engine, a real repository and a scripted server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.workers.agent.conftest import claim_body
from tests.workers.agent.scripted import Answer, ScriptedServer
from workers.agent.active_leases import ActiveLeases
from workers.agent.checkout import Checkout, Mirrors
from workers.agent.context import WorkerContext
from workers.agent.heartbeat import HeartbeatSender
from workers.agent.http import wire
from workers.agent.http.client import OrchestratorClient
from workers.agent.http.transport import Transport
from workers.agent.job_runner import JobRunner
from workers.agent.lease_watchdog import LeaseWatchdog
from workers.agent.result_delivery import ResultDelivery
from workers.agent.result_spool import ResultSpool
from workers.agent.upload import IngestClient
from workers.agent.workspace import WorkFolder
from workers.engines.contract import Engine
from workers.report.trace_reader import TraceReaders

STORED = Answer(201, {"run_id": "run_1", "created": True})


@contextlib.contextmanager
def a_bench(
    server: ScriptedServer, client: OrchestratorClient, root: Path, engine: Engine, **changes: Any
) -> Iterator[WorkerContext]:
    """The mirrors are `root/mirrors`, the workspaces `root/work`."""
    server.on("run", STORED)
    transport = Transport(server.url, lambda: "rto_worker_x")
    folder = WorkFolder(root / "work")
    leases = ActiveLeases()
    heartbeat, window = HeartbeatSender(client, leases), LeaseWatchdog(leases)
    heartbeat.start()
    window.start()
    spool = ResultSpool(folder.spool)
    values = {
        "worker_id": "wrk_01jworker",
        "client": client,
        "heartbeat": heartbeat,
        "engine": engine,
        "offered": engine.check().offered,
        "checkout": Checkout(Mirrors({"https://github.com/": f"{root}/mirrors/"})),
        "folder": folder,
        "spool": spool,
        "delivery": ResultDelivery(client, IngestClient(transport), spool, upload_seconds=60),
    }
    try:
        with contextlib.closing(TraceReaders()) as readers:
            yield WorkerContext(**({"trace_readers": readers} | values | changes))
    finally:
        heartbeat.close()
        window.close()
        folder.close()
        transport.close()


def a_run(bench: WorkerContext, commit: str, *words: str, **changes: Any) -> JobRunner:
    """A job for the null engine: `words` are its instructions."""
    defaults = {
        "source__git_commit": commit,
        "execution__command": ["null", *words],
        "execution__least_isolation": "none",
        "heartbeat_interval_seconds": 0.2,
    }
    body = claim_body()
    for name, value in (defaults | changes).items():
        outer, _, inner = name.partition("__")
        if inner:
            body["job"][outer][inner] = value
        else:
            body["job"][outer] = value
    return JobRunner(bench, wire.lease(body), slot=0)


@contextlib.contextmanager
def running(run: JobRunner) -> Iterator[threading.Thread]:
    """Run it in a thread of its own; at the end it must have come to its end."""
    thread = threading.Thread(target=run.run, daemon=True)
    thread.start()
    yield thread
    thread.join(15)
    assert not thread.is_alive()
