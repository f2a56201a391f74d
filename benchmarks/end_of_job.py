"""Measures what the end of a job costs the worker while many other processes run on the machine.

    python -m benchmarks.end_of_job --baseline ../other-checkout [--others 2000] [--runs 20]

Jobs of `true` run in turns in each checkout, first beside as few processes as the machine has, then beside `--others`
more, which sleep and end with this program. Measured is the processor time of the worker's own thread from the end of
the command to the end of the sandbox: the programs that it starts are not in it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import Cluster
from benchmarks.sandbox_overhead import FIRST_UIDS, HERE, WARM_UP, Side
from benchmarks.sizes import Sizes

OTHERS = 2_000
# One Perl process forks them: they share its memory. They end with their parent, and it ends when its input does.
SLEEPERS = """
$| = 1;
for (1 .. $ARGV[0]) {
    my $pid = fork // die "fork: $!";
    next if $pid;
    syscall 157, 1, 9, 0, 0, 0;
    sleep;
    exit;
}
print "ready\\n";
<STDIN>;
kill 9, -$$;
"""


def measure(_cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `end_of_job`: milliseconds of the worker's Python at the end of a job, alone and beside others."""
    found = compared({"this": HERE}, OTHERS, sizes.sandbox_runs)
    return {"end_of_job": found | {"others": OTHERS}, "end_of_job_ms": found["this"]["crowded_ms"]}


def compared(checkouts: dict[str, Path], others: int, runs: int, engine: str = "bubblewrap") -> dict[str, Any]:
    """Return `alone_ms` and `crowded_ms` of each checkout, medians."""
    sides = [
        Side.started(name, checkout, engine, uid)
        for (name, checkout), uid in zip(checkouts.items(), FIRST_UIDS, strict=False)
    ]
    try:
        alone = _rounds(sides, runs)
        with sleeping(others):
            crowded = _rounds(sides, runs)
    finally:
        for side in sides:
            side.close()
    return {name: {"alone_ms": alone[name], "crowded_ms": crowded[name]} for name in checkouts}


def _rounds(sides: list[Side], runs: int) -> dict[str, float]:
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(WARM_UP + runs):
        for side in sides:
            taken = side.run()
            if number >= WARM_UP:
                found[side.name].append(taken["end"])
    return {name: round(median(values) * 1000, 2) for name, values in found.items()}


@contextlib.contextmanager
def sleeping(number: int) -> Iterator[None]:
    """Run so many processes that do nothing."""
    command = ["/usr/bin/perl", "-e", SLEEPERS, str(number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as parent:
        assert parent.stdout is not None
        if parent.stdout.readline() != "ready\n":
            raise RuntimeError(f"{number} processes could not be started")
        yield


def main() -> int:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(description="Compare what the end of a job costs in two checkouts.")
    parser.add_argument("--baseline", type=Path, required=True, help="the checkout to compare this one with")
    parser.add_argument("--engine", default="bubblewrap", choices=("bubblewrap", "restricted"))
    parser.add_argument("--others", type=int, default=OTHERS, help="processes that sleep meanwhile")
    parser.add_argument("--runs", type=int, default=20, help="jobs in each checkout, alone and beside the others")
    options = parser.parse_args()
    checkouts = {"baseline": options.baseline.resolve(), "this": HERE}
    found = compared(checkouts, options.others, options.runs, options.engine)
    for name, row in found.items():
        sys.stdout.write(f"{name:<9} {row}\n")
    sys.stdout.write(json.dumps(found | {"others": options.others}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
