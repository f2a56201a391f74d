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

from benchmarks.environment import Cluster
from benchmarks.peers import environment, run_temporal
from benchmarks.sizes import Sizes
from config.paths import BASE_DIR

WITHIN = 240.0  # seconds for one of them, its start included
Command = Callable[[Cluster, Sizes, Path], list[str]]


def _prefect(cluster: Cluster, sizes: Sizes, python: Path) -> list[str]:
    url, folder = cluster.fresh("bench_prefect"), str(cluster.state / "prefect")
    return [sys.executable, "-m", "benchmarks.peers.run_prefect", url, folder, str(python), *_load(sizes)]


def _procrastinate(cluster: Cluster, sizes: Sizes, python: Path) -> list[str]:
    url = cluster.fresh("bench_procrastinate")
    return [str(python), "-m", "benchmarks.peers.run_procrastinate", url, str(sizes.peer_jobs)]


def _pgqueuer(cluster: Cluster, sizes: Sizes, python: Path) -> list[str]:
    url = cluster.fresh("bench_pgqueuer")
    return [str(python), "-m", "benchmarks.peers.run_pgqueuer", url, str(sizes.peer_jobs)]


def _celery(cluster: Cluster, sizes: Sizes, python: Path) -> list[str]:
    redis = shutil.which("redis-server")
    if redis is None:
        raise environment.NotInstalled("there is no redis-server on this machine (Debian's package redis-server)")
    folder = str(cluster.state / "celery")
    return [str(python), "-m", "benchmarks.peers.run_celery", folder, redis, str(sizes.peer_jobs)]


def _awa(cluster: Cluster, sizes: Sizes, python: Path) -> list[str]:
    return [str(python), "-m", "benchmarks.peers.run_awa", cluster.fresh("bench_awa"), str(sizes.peer_jobs)]


def _river(cluster: Cluster, sizes: Sizes, _python: Path) -> list[str]:
    return [str(environment.river(cluster.state)), cluster.fresh("bench_river"), str(sizes.peer_jobs)]


def _temporal(cluster: Cluster, sizes: Sizes, _python: Path) -> list[str]:
    program = environment.temporal(cluster.state)
    for name in run_temporal.DATABASES.values():
        cluster.fresh(name)
    folder = str(cluster.state / "temporal-server")
    runner = [sys.executable, "-m", "benchmarks.peers.run_temporal"]
    return [*runner, str(cluster.socket), folder, str(program), *_load(sizes)]


def _hatchet(cluster: Cluster, sizes: Sizes, _python: Path) -> list[str]:
    programs, url = environment.hatchet(cluster.state), cluster.fresh("bench_hatchet")
    folder = str(cluster.state / "hatchet-server")
    return [sys.executable, "-m", "benchmarks.peers.run_hatchet", url, folder, str(programs), *_load(sizes)]


PEERS: dict[str, Command] = {
    "prefect": _prefect,
    "procrastinate": _procrastinate,
    "pgqueuer": _pgqueuer,
    "celery": _celery,
    "awa": _awa,
    "river": _river,
    "temporal": _temporal,
    "hatchet": _hatchet,
}


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return `peers`, and our figures as multiples of theirs (None where one is missing).

    `lifecycles_vs_servers` compares with the better one of Temporal and Hatchet.
    """
    peers = {name: _figures(cluster, sizes, name) for name in PEERS}
    prefect = peers["prefect"].get("lifecycles_per_s")
    ours = before.get("lifecycles_per_s") or {}
    layouts = before.get("layouts") or {}
    better = max((peers[name].get("lifecycles_per_s") or 0 for name in ("temporal", "hatchet")), default=0)
    return {
        "lifecycles_vs_servers": {calls: ratio(rate, better) for calls, rate in ours.items()},
        "lifecycles_vs_prefect": {calls: ratio(rate, prefect) for calls, rate in ours.items()},
        "layouts_vs_prefect": {
            layout: {calls: ratio(flow["rate"], prefect) for calls, flow in flows.items()}
            for layout, flows in layouts.items()
        },
        "bulk_vs_procrastinate": ratio(
            before.get("bulk_lifecycles_per_s"), peers["procrastinate"].get("bulk_jobs_per_s")
        ),
        "peers": peers,
    }


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return round(ours / theirs, 2) if ours and theirs else None


def _figures(cluster: Cluster, sizes: Sizes, name: str) -> dict[str, Any]:
    try:
        command = PEERS[name](cluster, sizes, environment.python_of_peers(cluster.state))
        return _output(command)
    except (environment.NotInstalled, OSError) as error:
        return {"missing": str(error)}


def _output(command: list[str]) -> dict[str, Any]:
    """The last line of a peer's script, or why there is none."""
    child = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    try:
        result = subprocess.run(child, cwd=BASE_DIR, capture_output=True, text=True, check=False, timeout=WITHIN)
    except subprocess.TimeoutExpired:
        return {"missing": f"it did not end within {WITHIN:.0f} seconds"}
    if result.returncode or not result.stdout.strip():
        return {"missing": (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1][:300]}
    return dict(json.loads(result.stdout.splitlines()[-1]))


def _load(sizes: Sizes) -> list[str]:
    return [str(sizes.clients), str(max(5.0, sizes.seconds))]
