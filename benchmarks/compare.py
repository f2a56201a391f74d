"""Compares what a call costs in two checkouts, by processor time and in turns, so that it may run on a busy machine.

    python -m benchmarks.compare ../base .                     # the second ÷ the first, five-call lifecycles
    python -m benchmarks.compare ../base . --scenario many     # also: three, two (complete with claim_next)
    python -m benchmarks.compare ../base . --backlog 10000 --leased 3000
    python -m benchmarks.compare ../base . --rate 5            # lifecycles/s over HTTP; needs an idle machine

Each checkout has its own PostgreSQL, started and configured by its own code, an empty database and one process. They
run short slices in turns, and the order changes from pair to pair. Both sides of a pair meet the same load of the
machine, so the ratio of a pair is more reliable than the milliseconds; the median of all pairs is printed, with its
quartiles. Statements, round trips and bytes of WAL are counted in slices of their own: libpq's trace has each message.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import checkouts
from benchmarks.checkouts import COUNTED, SCENARIOS, TIMED, Figures, MeasuredCheckout
from benchmarks.load import LoadPlan, loaded

WARM_UP, COUNTED_ROUNDS = 30, 15
NOTHING = 0.005  # milliseconds, or a count: of less no ratio is calculated
LOAD_CLIENTS = 16


def in_turns(
    sides: list[MeasuredCheckout], scenario: str, *, pairs: int, rounds: int
) -> dict[str, list[list[Figures]]]:
    """Return the slices of each side, `timed` and `counted`; the n-th slices of both sides are a pair."""
    found: dict[str, list[list[Figures]]] = {mode: [[] for _ in sides] for mode in ("timed", "counted")}
    for side in sides:
        side.slice(scenario, "timed", 2 if scenario == "many" else WARM_UP)
    for pair in range(pairs):
        for place in _order(len(sides), pair):
            found["timed"][place].append(sides[place].slice(scenario, "timed", rounds))
    for place, side in enumerate(sides):
        found["counted"][place].append(side.slice(scenario, "counted", 2 if scenario == "many" else COUNTED_ROUNDS))
    return found


def _order(sides: int, pair: int) -> list[int]:
    """Return the places in the order of this pair: every other one is reversed."""
    return list(range(sides))[:: -1 if pair % 2 else 1]


def ratios(first: list[float], second: list[float]) -> dict[str, float]:
    """Return the median and the quartiles of second ÷ first over the pairs."""
    found = [new / old for old, new in zip(first, second, strict=True) if old > NOTHING]
    if not found:
        return {}
    low, middle, high = quantiles(found, n=4) if len(found) > 1 else found * 3
    return {"ratio": round(middle, 3), "quartile_1": round(low, 3), "quartile_3": round(high, 3)}


def figures(found: dict[str, list[list[Figures]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return operation -> figure -> the sides' medians as `values`, and with two sides the ratios of the pairs."""
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for mode, names in (("timed", TIMED), ("counted", COUNTED)):
        slices = found[mode]
        for operation in slices[0][0]:
            for name in names:
                sides = [[one[operation][name] for one in side if operation in one] for side in slices]
                row: dict[str, Any] = {"values": [round(median(side), 3) for side in sides]}
                if len(sides) == 2:
                    row |= ratios(*sides)
                result.setdefault(operation, {})[name] = row
    return result


def lines(result: dict[str, dict[str, dict[str, Any]]], names: list[str]) -> list[str]:
    """Return the table for a terminal: a line for each operation and figure."""
    shown = [f"{'':14}{'':18}" + "".join(f"{name:>14}" for name in names) + f"{'ratio':>9}{'quartiles':>16}"]
    for name in (*TIMED, *COUNTED):
        for operation, row in result.items():
            cells = row[name]
            ratio = (
                f"{cells['ratio']:9.3f}{cells['quartile_1']:9.3f} {cells['quartile_3']:6.3f}"
                if "ratio" in cells
                else ""
            )
            shown.append(f"{name:14}{operation:18}" + "".join(f"{value:14,.2f}" for value in cells["values"]) + ratio)
    return shown


def rates(folders: list[Path], *, seconds: float, turns: int, layout: str, flow: str = "lifecycles") -> dict[str, Any]:
    """Return lifecycles/s over HTTP of each checkout in turns, and the ratios; an idle server costs nothing."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(checkouts.started(it, name=it.name, layout=layout)) for it in folders]
        servers = [side.read() for side in sides]
        found: list[list[float]] = [[] for _ in sides]
        for turn in range(turns):
            for place in _order(len(sides), turn):
                found[place].append(loaded(_plan(servers[place], seconds, flow))["rate"] or 0.0)
    return {"per_s": [round(median(side), 1) for side in found], "turns": found} | ratios(*found)


def _plan(server: dict[str, Any], seconds: float, flow: str) -> LoadPlan:
    return LoadPlan(
        flow,
        server["host"],
        server["port"],
        LOAD_CLIENTS,
        seconds=seconds,
        warmup=1,
        workers=server["workers"],
        token=server["token"],
        bodies=[server["body"]],
    )


def parsed(arguments: list[str] | None = None, *, folders: int = 2) -> argparse.Namespace:
    """Return the options of `compare`, or with `folders=0` those of `calls`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    if folders:
        parser.add_argument("folders", nargs=folders, type=Path, help="the checkout before, and the one after")
        parser.add_argument("--rate", type=float, default=0, help="seconds of load over HTTP for each turn, instead")
        parser.add_argument("--layout", default="asgi-1", help="of the servers with --rate")
    parser.add_argument("--scenario", choices=SCENARIOS, default="five")
    parser.add_argument("--pairs", type=int, default=20, help="slices of each side")
    parser.add_argument("--rounds", type=int, default=0, help="lifecycles of a slice (10; many: 2 batches)")
    parser.add_argument("--backlog", type=int, default=0, help="jobs that wait in the pool all the time")
    parser.add_argument("--leased", type=int, default=0, help="leases that other workers hold all the time")
    return parser.parse_args(arguments)


def measured(folders: list[Path], options: argparse.Namespace) -> dict[str, dict[str, dict[str, Any]]]:
    """Return `figures` of one or two checkouts."""
    with contextlib.ExitStack() as stack:
        sides: list[MeasuredCheckout] = []
        for folder in folders:
            side = checkouts.started(folder, name=folder.resolve().name, backlog=options.backlog, leased=options.leased)
            sides.append(stack.enter_context(side))
        for side in sides:
            side.read()
        rounds = options.rounds or (2 if options.scenario == "many" else 10)
        return figures(in_turns(sides, options.scenario, pairs=options.pairs, rounds=rounds))


def run(work: Callable[[], int]) -> int:
    """Run a command of this folder; a failure of a checkout is one line."""
    try:
        return work()
    except checkouts.MeasuredCheckoutFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1


def main() -> int:
    options = parsed()
    if options.rate:
        found = rates(options.folders, seconds=options.rate, turns=max(2, options.pairs // 5), layout=options.layout)
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    result = measured(options.folders, options)
    sys.stdout.write("\n".join([*lines(result, [folder.resolve().name for folder in options.folders]), ""]))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
