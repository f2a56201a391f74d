"""`make chaos SECONDS=… SEED=…`: break everything at random, then see that nothing was lost and nothing happened twice.

The last line of the output is one JSON object; exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

DRAIN_SECONDS = 180.0
STARTS_WITHIN = 60.0
console = Console(highlight=False, soft_wrap=True, stderr=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--runners", type=int, default=8)
    parser.add_argument("--workflow-runners", type=int, default=6)
    parser.add_argument("--open-jobs", type=int, default=60, help="may wait or run at a time: at the end all must end")
    return parser.parse_args()


@contextlib.contextmanager
def installed() -> Iterator[tuple[Path, object, object]]:
    """A state directory, a PostgreSQL with the tables and a storage of this run's own; all gone at the end."""
    state = Path(tempfile.mkdtemp(prefix="rto-chaos-"))
    os.environ |= {"STATE_DIR": str(state), "DJANGO_SETTINGS_MODULE": "config.settings", "DATABASE_ROLE": "migrate"}
    for name in ("DATABASE_URL", "DATABASE_URL_FILE"):
        os.environ.pop(name, None)
    from tests.chaos.processes import Postgres, Storage  # noqa: PLC0415 - after the environment

    storage = Storage(state)
    os.environ |= {"REPOSITORY_ROOT": str(state / "origins"), **storage.variables}
    postgres = Postgres(state)
    try:
        import django  # noqa: PLC0415 - likewise
        from django.core.management import call_command  # noqa: PLC0415 - likewise

        storage.start(STARTS_WITHIN)
        django.setup()
        call_command("migrate", verbosity=0)
        yield state, postgres, storage
    finally:
        from django.db import connections  # noqa: PLC0415 - likewise

        connections.close_all()
        storage.part.end(10)
        postgres.leave()
        shutil.rmtree(state, ignore_errors=True)


def main() -> int:
    asked = arguments()
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    all_runners = f"{asked.runners} channel runners and {asked.workflow_runners} workflow runners"
    console.print(
        f"chaos for {asked.seconds:g} s with {asked.workers} workers, {all_runners}; SEED={seed} repeats the schedule"
    )
    with installed() as (state, postgres, storage):
        console.print(f"in {state}")
        from django.db import connections  # noqa: PLC0415 - after the environment

        from tests.chaos import scenario  # noqa: PLC0415 - likewise
        from tests.chaos.report import judge  # noqa: PLC0415 - likewise
        from tests.chaos.runner import ChaosRun, audit  # noqa: PLC0415 - likewise
        from tests.chaos.webhook_receiver import WebhookReceiver  # noqa: PLC0415 - likewise

        with WebhookReceiver(seed) as receiver:
            tenants = scenario.build(state, asked.workers, asked.runners, asked.workflow_runners, receiver)
            connections.close_all()  # the database is about to be killed, again and again
            chaos_run = ChaosRun(
                state, postgres, storage, receiver, tenants, seed, asked.seconds, asked.open_jobs, console.print
            )
            chaos_run.run(DRAIN_SECONDS)
        verdict = judge(chaos_run, audit(chaos_run._environment()))
        if verdict.faults:
            kept = Path(tempfile.mkdtemp(prefix="rto-chaos-log-"))
            shutil.copytree(state / "log", kept, dirs_exist_ok=True)
            console.print(f"what the processes have written: {kept}")
    summary(chaos_run, verdict)
    print(verdict.line(), flush=True)  # noqa: T201 - for programs
    return 1 if verdict.faults else 0


def summary(chaos_run, verdict) -> None:
    """A table for people, and every fault in words."""
    table = Table(title=f"SEED={verdict.seed}", show_header=False)
    faults = Counter(recovery.fault.kind for recovery in chaos_run.recoveries)
    lines = {
        "jobs": f"{verdict.jobs}, {verdict.final} final: {_counted(verdict.states)}",
        "acknowledged": f"{len(chaos_run.ledger.submitted)} submits, {len(chaos_run.ledger.canceled)} cancels",
        "answers to clients": f"503: {chaos_run.ledger.unavailable}, nothing: {chaos_run.ledger.unanswered}",
        "network": _counted(chaos_run.proxy.happened),
        "connections of the servers": ", ".join(map(str, verdict.connections)),
        "runners": f"{verdict.acknowledged_results} results, {verdict.minutes} minutes; "
        + _counted(chaos_run.runners.ledger.counts),
        "workflows": f"{verdict.workflows.runs} runs, {verdict.log_bytes} bytes of logs; "
        + _counted(chaos_run.workflows.ledger.counts),
        "deliveries": f"{verdict.deliveries} events accepted, {verdict.repeated_deliveries} of them again",
        "faults": f"{chaos_run.injected}: {_counted(faults)}",
        "runs whose job ended before": str(verdict.orphans),
    }
    for name, text in lines.items():
        table.add_row(name, text)
    for kind in sorted(faults):
        took = [
            f"{found.seconds:.1f}" if found.seconds else "never"
            for found in chaos_run.recoveries
            if found.fault.kind == kind
        ]
        table.add_row(f"recovery, {kind}", " ".join(took))
    console.print(table)
    for fault in [*verdict.faults, *verdict.wrong[:10], *verdict.lost_results[:10], *verdict.workflows.examples]:
        console.print(f"WRONG: {fault}", markup=False)


def _counted(found) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()))


if __name__ == "__main__":
    sys.exit(main())
