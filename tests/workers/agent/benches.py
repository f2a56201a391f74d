"""A worker's bench around the strict null engine, a real repository and a scripted server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.workers.agent.conftest import claim_body
from tests.workers.agent.scripted import Answer, ScriptedServer
from workers.agent import wire
from workers.agent.bench import Bench
from workers.agent.checkout import Checkout, Mirrors
from workers.agent.client import Client
from workers.agent.delivery import Delivery
from workers.agent.execution import JobRun
from workers.agent.heartbeat import Heartbeat
from workers.agent.holding import Holdings
from workers.agent.spool import Spool
from workers.agent.transport import Patience, Transport
from workers.agent.trust import TrustWindow
from workers.agent.upload import Ingest
from workers.agent.workspace import WorkFolder
from workers.engines.base import Engine

STORED = Answer(201, {"run_id": "run_1", "created": True})


@contextlib.contextmanager
def a_bench(server: ScriptedServer, client: Client, root: Path, engine: Engine, **changes: Any) -> Iterator[Bench]:
    """The mirrors are `root/mirrors`, the workspaces `root/work`."""
    server.on("run", STORED)
    transport = Transport(server.url, lambda: "rto_worker_x")
    folder = WorkFolder(root / "work")
    holdings = Holdings()
    heartbeat, window = Heartbeat(client, holdings), TrustWindow(holdings)
    heartbeat.start()
    window.start()
    spool = Spool(folder.spool)
    values = {
        "worker_id": "wrk_01jworker",
        "client": client,
        "heartbeat": heartbeat,
        "engine": engine,
        "offered": engine.check().offered,
        "checkout": Checkout(Mirrors({"https://github.com/": f"{root}/mirrors/"})),
        "folder": folder,
        "spool": spool,
        "delivery": Delivery(client, Ingest(transport, Patience(1, 1, 2)), spool, upload_seconds=2),
    }
    try:
        yield Bench(**(values | changes))
    finally:
        heartbeat.close()
        window.close()
        folder.close()
        transport.close()


def a_run(bench: Bench, commit: str, *words: str, **changes: Any) -> JobRun:
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
    return JobRun(bench, wire.lease(body), slot=0)


@contextlib.contextmanager
def running(run: JobRun) -> Iterator[threading.Thread]:
    """Run it in a thread of its own; at the end it must have come to its end."""
    thread = threading.Thread(target=run.run, daemon=True)
    thread.start()
    yield thread
    thread.join(15)
    assert not thread.is_alive()
