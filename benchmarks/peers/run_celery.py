"""Runs Celery with a Redis that writes every message to disk before it answers, as PostgreSQL does.

Tasks are sent, then one worker of two processes runs them, acknowledging late. Runs in the peers' environment:
`… FOLDER REDIS JOBS`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import redis
from celery import Celery

from benchmarks.peers.running import free_port, listens, part, rate, say

PORT = int(os.environ.get("BENCH_REDIS_PORT", "0"))
app = Celery("benchmarks.peers.run_celery", broker=f"redis://127.0.0.1:{PORT}/0")
app.conf.task_acks_late = True  # else a task is lost with its worker
app.conf.worker_prefetch_multiplier = 4
DONE_WITHIN = 120.0


@app.task(ignore_result=True)
def empty() -> None:
    _redis().incr("done")


def _redis() -> redis.Redis:
    global _known  # noqa: PLW0603 one connection a process
    _known = _known or redis.Redis(port=PORT)
    return _known


_known: redis.Redis | None = None


def main(folder: str, program: str, jobs: int) -> None:
    """The port has to be known when this module is loaded, by the worker's processes too: so it starts itself anew."""
    if not PORT:
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], _with_port())
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    server = [program, "--port", str(PORT), "--bind", "127.0.0.1", "--dir", str(home), *durable]
    worker = [sys.executable, "-m", "celery", "--app", "benchmarks.peers.run_celery", "worker", "--concurrency", "2"]
    worker += ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    with part(server, home / "redis.log", lambda: listens(PORT)):
        _redis().flushall()
        began = time.monotonic()
        for _ in range(jobs):
            empty.delay()
        sent = time.monotonic() - began
        with part(worker, home / "worker.log", lambda: bool(_redis().get("done"))):
            took = _run(jobs)
    say(jobs_per_s=rate(jobs, sent + took), run_per_s=rate(jobs, took), sends_per_s=rate(jobs, sent))


def _run(jobs: int) -> float:
    """Seconds that the rest took, as if all had gone at its pace: what its start took does not count."""
    began, before = time.monotonic(), int(_redis().get("done") or 0)
    while (done := int(_redis().get("done") or 0)) < jobs:
        if time.monotonic() - began > DONE_WITHIN:
            break
        time.sleep(0.01)
    return (time.monotonic() - began) * jobs / max(1, done - before)


def _with_port() -> dict[str, str]:
    return os.environ | {"BENCH_REDIS_PORT": str(free_port())}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
