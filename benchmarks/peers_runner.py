"""Runs the peers one after the other, each in processes and on a database of its own on the same PostgreSQL.

A peer that cannot be installed or started has no figures; the reason is reported.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environment import Stage
from benchmarks.peers import environment
from benchmarks.sizes import Sizes
from config.paths import BASE_DIR

WITHIN = 240.0  # seconds for one of them, its start included
Command = Callable[[Stage, Sizes, Path], list[str]]


def _prefect(stage: Stage, sizes: Sizes, python: Path) -> list[str]:
    url, folder = stage.fresh("bench_prefect"), str(stage.state / "prefect")
    return [sys.executable, "-m", "benchmarks.peers.run_prefect", url, folder, str(python), *_load(sizes)]


def _procrastinate(stage: Stage, sizes: Sizes, python: Path) -> list[str]:
    url = stage.fresh("bench_procrastinate")
    return [str(python), "-m", "benchmarks.peers.run_procrastinate", url, str(sizes.peer_jobs)]


def _pgqueuer(stage: Stage, sizes: Sizes, python: Path) -> list[str]:
    url = stage.fresh("bench_pgqueuer")
    return [str(python), "-m", "benchmarks.peers.run_pgqueuer", url, str(sizes.peer_jobs)]


def _celery(stage: Stage, sizes: Sizes, python: Path) -> list[str]:
    redis = shutil.which("redis-server")
    if redis is None:
        raise environment.NotInstalled("there is no redis-server on this machine (Debian's package redis-server)")
    folder = str(stage.state / "celery")
    return [str(python), "-m", "benchmarks.peers.run_celery", folder, redis, str(sizes.peer_jobs)]


PEERS: dict[str, Command] = {
    "prefect": _prefect,
    "procrastinate": _procrastinate,
    "pgqueuer": _pgqueuer,
    "celery": _celery,
}


def measure(stage: Stage, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """`peers`, and our figures as multiples of theirs (None where one is missing)."""
    peers = {name: _figures(stage, sizes, name) for name in PEERS}
    return {
        "lifecycles_vs_prefect": ratio(before.get("lifecycles_per_s"), peers["prefect"].get("lifecycles_per_s")),
        "bulk_vs_procrastinate": ratio(
            before.get("bulk_lifecycles_per_s"), peers["procrastinate"].get("bulk_jobs_per_s")
        ),
        "peers": peers,
    }


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return round(ours / theirs, 2) if ours and theirs else None


def _figures(stage: Stage, sizes: Sizes, name: str) -> dict[str, Any]:
    try:
        command = PEERS[name](stage, sizes, environment.python_of_peers(stage.state))
        return _heard(command)
    except (environment.NotInstalled, OSError) as error:
        return {"missing": str(error)}


def _heard(command: list[str]) -> dict[str, Any]:
    """The last line of a peer's script, or why there is none."""
    child = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    try:
        told = subprocess.run(child, cwd=BASE_DIR, capture_output=True, text=True, check=False, timeout=WITHIN)
    except subprocess.TimeoutExpired:
        return {"missing": f"it did not end within {WITHIN:.0f} seconds"}
    if told.returncode or not told.stdout.strip():
        return {"missing": (told.stderr.strip().splitlines() or [f"exit code {told.returncode}"])[-1][:300]}
    return dict(json.loads(told.stdout.splitlines()[-1]))


def _load(sizes: Sizes) -> list[str]:
    return [str(sizes.clients), str(max(5.0, sizes.seconds))]
