"""Runs all scenarios of `make bench` on one machine and one PostgreSQL.

Prints a table and, as its last line, the figures as JSON. QUICK=1 for the quick form; ONLY="claims limits" for some of
the scenarios.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environment as benchmarks_environment
from benchmarks import machine, table
from benchmarks.peers import environment
from benchmarks.sizes import Sizes, chosen

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "images"
# In this order: later scenes use what earlier ones found. The module of each has `measure(stage, sizes, before)`.
SCENES = {
    "lifecycles": "lifecycles",
    "peers": "peers_runner",
    "claims": "claims",
    "waiting": "idle_load",
    "limits": "limits",
    "fairness": "fairness",
    "killed": "crash",
    "profile": "profiling",
    "flatness": "flatness",
}
UNAUDITED = frozenset({"flatness"})  # its million jobs have no event history
# What the last line has, null where it could not be measured.
PROMISED = (
    *("lifecycles_per_s", "lifecycles_vs_prefect", "bulk_lifecycles_per_s", "bulk_vs_procrastinate"),
    *("claims_vs_pgbench", "bulk_claims_vs_pgbench", "flat_jobs", "flat_lanes", "blocked_ahead", "latency_ms"),
    *("limits_exceeded", "idle_polls", "fairness", "killed", "deadlocks", "audit"),
)


def main() -> int:
    sizes, began = chosen(), time.monotonic()
    asked = os.environ.get("ONLY", "").split() or list(SCENES)
    place = benchmarks_environment.opened()
    _install(place)
    found: dict[str, Any] = {"form": sizes.name, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "failed": {}}
    found |= {"machine": machine.described(place), "audit": []}
    for name in [name for name in SCENES if name in asked]:
        _play(name, place, sizes, found)
    found |= {"deadlocks": place.deadlocks(), "seconds": round(time.monotonic() - began)}
    _keep(found, found.pop("pictures", {}), sizes)
    _show(found)
    sys.stdout.write(json.dumps({name: found.get(name) for name in PROMISED}) + "\n")
    return 1 if found["failed"] else 0


def _install(place: benchmarks_environment.Stage) -> None:
    """Before anything is measured. What cannot be installed is missing from the table, and the reason is there."""
    for wanted in (environment.python_of_peers, environment.tools):
        try:
            wanted(place.state)
        except environment.NotInstalled as error:
            sys.stderr.write(f"{error}\n")


def _play(name: str, place: benchmarks_environment.Stage, sizes: Sizes, found: dict[str, Any]) -> None:
    """Run one scenario on an empty database. A failure is reported, and the next scenario runs."""
    began = time.monotonic()
    try:
        place.emptied()
        found |= importlib.import_module(f"benchmarks.{SCENES[name]}").measure(place, sizes, found)
        if name not in UNAUDITED:
            found["audit"] += _audited()
    except Exception as error:  # noqa: BLE001 - whatever it is, the figures of the others count
        traceback.print_exc()
        found["failed"][name] = f"{type(error).__name__}: {error}"[:500]
    Console(stderr=True).print(f"[dim]{name}: {time.monotonic() - began:.0f} s[/dim]")


def _audited() -> list[str]:
    from orchestrator.audit.runner import run_audit  # noqa: PLC0415 - after the settings

    return [str(finding)[:300] for finding in run_audit()]


def _keep(found: dict[str, Any], pictures: dict[str, str], sizes: Sizes) -> None:
    """One result a form; only that of the full one is committed, and the pictures are its."""
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / f"{sizes.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, drawing in pictures.items():
        folder = IMAGES if sizes.name == "full" else results
        (folder / f"{name}.svg").write_text(drawing)


def _show(found: dict[str, Any]) -> None:
    shown = Table("figure", "measured", "aim", "met", title=f"make bench, {found['form']} form, {found['seconds']} s")
    for row in table.rows(found):
        colour = {True: "green", False: "red", None: ""}[row.met]
        shown.add_row(row.figure, row.value, row.aim, f"[{colour}]{table.verdict(row)}[/]" if colour else "")
    Console(width=110).print(shown)
    for name, reason in found["failed"].items():
        Console().print(f"[red]{name} failed:[/red] {reason}", markup=True)


if __name__ == "__main__":
    sys.exit(main())
