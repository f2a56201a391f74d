"""Runs all scenarios of `make bench` on one machine and one PostgreSQL.

Prints a table and, as its last line, the figures as JSON. QUICK=1 for the quick form; ONLY="claims limits" for some of
the scenarios; BASELINE=../other-checkout compares lifecycles/s with that checkout.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environment, machine, table
from benchmarks.peers import environment as peers_environment
from benchmarks.sizes import Sizes, chosen

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "images"
# In this order: later scenarios use what earlier ones found, and a run that has used up its time leaves out the last.
# The module of each has `measure(cluster, sizes, before)`.
SCENARIOS = {
    "lifecycles": "lifecycles",
    "combining": "combining",
    "peers": "peers_runner",
    "claims": "claims",
    "costs": "costs",
    "waiting": "idle_load",
    "channels": "channels",
    "limits": "limits",
    "killed": "crash",
    "open_snapshot": "open_snapshot",
    "flatness": "flatness",
    "sandbox": "sandbox",
    "end_of_job": "end_of_job",
    "traced": "traced",
    "images": "images",
    "artifacts": "artifacts",
    "step_logs": "step_logs",
    "actions": "actions",
    "streams": "streams",
    "document_004": "document_004",
    "graphql": "graphql_queries",
    "deliveries": "deliveries",
    "evidence": "evidence",
    "core_cost": "core_cost",
    "fairness": "fairness",
    "profile": "profiling",
}
UNAUDITED = frozenset({"flatness"})  # its million jobs have no event history
# The fields of the last line; one that was not measured is null.
PROMISED = (
    *(
        "lifecycles_per_s",
        "lifecycles_vs_prefect",
        "lifecycles_vs_servers",
        "layouts_vs_prefect",
        "bulk_lifecycles_per_s",
    ),
    *(
        "combining",
        "one_token",
        "bulk_vs_procrastinate",
        "claims_vs_minimal",
        "claims_vs_pgbench",
        "bulk_claims_vs_pgbench",
    ),
    *("postgres_vs_minimal", "heartbeat_vs_empty", "heartbeat_vs_floor", "statements", "trips", "wal_kb", "latency_ms"),
    *("flat_jobs", "flat_lanes", "blocked_ahead", "flat_leases", "open_snapshot", "open_snapshot_pages"),
    *("limits_exceeded", "idle_polls", "fairness"),
    *("beats_vs_http", "channel_claim_vs_poll", "channel_lifecycles_vs_http", "channel_memory_vs_poll"),
    *("claim_100_specs", "pull_vs_registry", "image_memory", "log_mb", "log_flat", "masks"),
    *("artifacts", "artifacts_memory_mib", "artifacts_bucket_mb"),
    *("log_calls", "actions_claims", "used_tokens"),
    *("finalize_mb", "followers_p99_ms", "followers_reads", "killed", "sandbox", "core_cost", "deadlocks"),
    *("end_of_job", "end_of_job_ms", "traced", "traced_vs_bare", "untraced_vs_bare", "trace_python"),
    *("sse_ms", "sse_cost", "log_followers_cost", "webhooks_vs_bare", "dead_receiver", "graphql_vs_rest"),
    *("dashboard_ms", "api_jobs_ms", "document_004"),
    *("export_memory", "verify_vs_hashing", "replay_match", "replay_verify_vs_hashing"),
    *("audit", "not_met", "left_out"),
)


def main() -> int:
    sizes = chosen()
    requested = os.environ.get("ONLY", "").split() or list(SCENARIOS)
    unknown = [name for name in requested if name not in SCENARIOS]
    if unknown:
        sys.stderr.write(f"ONLY={' '.join(unknown)}: the scenarios are {' '.join(SCENARIOS)}\n")
        return 2
    cluster = environment.opened()
    _install(cluster, requested)
    began = time.monotonic()
    found: dict[str, Any] = {"form": sizes.name, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "failed": {}}
    found |= {"machine": machine.described(cluster), "audit": [], "seconds_each": {}, "left_out": []}
    deadlocks = [cluster.deadlocks()]
    for name in [name for name in SCENARIOS if name in requested]:
        if time.monotonic() - began < sizes.budget:
            _measure(name, cluster, sizes, found)
            deadlocks.append(cluster.deadlocks())
        else:
            found["left_out"].append(name)
    found |= {"deadlocks": increases(deadlocks), "seconds": round(time.monotonic() - began)}
    found["not_met"] = [row.figure for row in table.aims(found) if row.met is False]
    _keep(found, found.pop("pictures", {}), sizes)
    _display(found, is_part=set(requested) != set(SCENARIOS))
    sys.stdout.write(json.dumps({name: found.get(name) for name in PROMISED}) + "\n")
    return 1 if found["failed"] else 0


def _install(cluster: environment.Cluster, requested: list[str]) -> None:
    """Install what the scenarios need before anything is measured; the table has the reason for one that is missing."""
    needs: list[Callable[[Path], Path]] = []
    if "peers" in requested:
        needs += [peers_environment.python_of_peers, peers_environment.river]
    if {"lifecycles", "profile"} & set(requested):  # other scenarios use the layout that `lifecycles` has found
        needs.append(peers_environment.tools)
    for install in needs:
        try:
            install(cluster.state)
        except peers_environment.NotInstalled as error:
            sys.stderr.write(f"{error}\n")


def _measure(name: str, cluster: environment.Cluster, sizes: Sizes, found: dict[str, Any]) -> None:
    """Run one scenario on an empty database. A failure is reported, and the next scenario runs."""
    began = time.monotonic()
    try:
        cluster.emptied()
        found |= importlib.import_module(f"benchmarks.{SCENARIOS[name]}").measure(cluster, sizes, found)
        if name not in UNAUDITED:
            found["audit"] += _audited()
    except Exception as error:  # noqa: BLE001 - whatever it is, the figures of the others count
        traceback.print_exc()
        found["failed"][name] = f"{type(error).__name__}: {error}"[:500]
    found["seconds_each"][name] = round(time.monotonic() - began)
    Console(stderr=True).print(f"[dim]{name}: {found['seconds_each'][name]} s[/dim]")


def increases(readings: list[int]) -> int:
    """Return by how much a counter has grown. It begins anew when PostgreSQL recovers from a crash."""
    return sum(now - before if now >= before else now for before, now in pairwise(readings))


def _audited() -> list[str]:
    from orchestrator.audit.runner import run_audit  # noqa: PLC0415 - after the settings

    return [str(finding)[:300] for finding in run_audit()]


def _keep(found: dict[str, Any], pictures: dict[str, str], sizes: Sizes) -> None:
    """Write the result of this form; only that of the full form is committed, with its pictures."""
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / f"{sizes.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, drawing in pictures.items():
        folder = IMAGES if sizes.name == "full" else results
        (folder / f"{name}.svg").write_text(drawing)


def _display(found: dict[str, Any], *, is_part: bool) -> None:
    """Print the table. That of a part of the scenarios has the figures that it has measured only."""
    displayed = Table(
        "figure", "measured", "aim", "met", title=f"make bench, {found['form']} form, {found['seconds']} s"
    )
    for row in table.rows(found):
        if is_part and row.value == table.MISSING:
            continue
        color = {True: "green", False: "red", None: ""}[row.met]
        displayed.add_row(row.figure, row.value, row.aim, f"[{color}]{table.verdict(row)}[/]" if color else "")
    Console(width=120).print(displayed)
    if found["left_out"]:
        Console().print(f"not begun, because the time was used up: {' '.join(found['left_out'])}")
    for name, reason in found["failed"].items():
        Console().print(f"[red]{name} failed:[/red] {reason}", markup=True)


if __name__ == "__main__":
    sys.exit(main())
