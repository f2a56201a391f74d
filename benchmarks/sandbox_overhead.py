"""Measures what one job of `true` costs in a sandbox engine, in this checkout and in another, in turns.

    python -m benchmarks.sandbox_overhead --baseline ../other-checkout [--engine bubblewrap] [--type steps] [--runs 200]

Each checkout has a process of its own, which imports its engine once. A round is one job in each of them, in random
order, so that a busy machine slows both sides alike. Printed per checkout: the median and the quartiles of the seconds
that `run` took, and of the processor seconds of the worker and all that it started. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
FIRST_UIDS = (150_000, 160_000)  # ranges that no worker uses by default, one for each side
WARM_UP = 5

# Runs in each checkout with nothing but the standard library and that checkout's engines: one line in, one job, one
# line out. Children count once the keeper was waited for, which is before `run` returns.
RUNNER = """
import json, os, resource, shutil, sys, tempfile, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])

def processor():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

if sys.argv[2] == "bare":  # the least that a job can cost: fork, exec and wait
    program = shutil.which("true")
    for line in sys.stdin:
        began, used = time.perf_counter(), processor()
        child = os.fork()
        if not child:
            os.execv(program, ["true"])
        assert os.waitpid(child, 0)[1] == 0
        print(json.dumps({"seconds": time.perf_counter() - began, "processor": processor() - used}), flush=True)
    sys.exit()
from workers.engines import engine_named
try:
    from workers.engines.contract import RunLimits, RunSpec, StopSignal
except ImportError:  # a checkout before the names of 0.1.0 were settled
    from workers.engines.base import Limits as RunLimits, Order as RunSpec, Stop as StopSignal
how = {}
if sys.argv[4] == "steps":
    try:
        from workers.engines.contract import TraceLevel
        how["trace"] = TraceLevel.NONE
    except ImportError:  # a checkout that traces every command
        pass
engine = engine_named(sys.argv[2], first_uid=int(sys.argv[3]))
assert not engine.check().missing  # also finds the volumes that hold the disk limit, in a checkout that has them
if hasattr(engine, "reserved"):  # as a worker does it: once, for its life
    reservation = engine.reserved(0)
    reservation.__enter__()
from workers.engines.sandbox.run import SandboxRun
shut_down, ends = SandboxRun._shut_down, []
def timed(run, *given):
    began = time.thread_time()
    try:
        return shut_down(run, *given)
    finally:
        ends.append(time.thread_time() - began)
SandboxRun._shut_down = timed
base = Path(tempfile.mkdtemp(prefix="sandbox-overhead-"))
base.chmod(0o711)

try:
    for line in sys.stdin:
        folder = engine.directory(0, base, RunLimits()) if hasattr(engine, "directory") else base
        workspace = folder / "job"
        workspace.mkdir()
        owner = engine.owner(0)
        if owner is not None:
            os.chown(workspace, owner, owner)
        order = RunSpec(argv=("true",), workspace=workspace, slot=0, timeout_seconds=60, **how)
        began, used = time.perf_counter(), processor()
        ended = engine.run(order, output=len, trace=len, stop=StopSignal())
        found = {"seconds": time.perf_counter() - began, "processor": processor() - used, "end": ends[-1]}
        assert (ended.kind, ended.exit_code) == ("exited", 0), ended
        shutil.rmtree(workspace)
        print(json.dumps(found), flush=True)
finally:
    shutil.rmtree(base, ignore_errors=True)
"""


@dataclass
class Side:
    """One checkout, its process, and what its jobs took."""

    name: str
    process: subprocess.Popen[str]
    found: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def started(cls, name: str, checkout: Path, engine: str, first_uid: int, job_type: str = "steps") -> Side:
        """Start the process of a checkout, which waits for `run`."""
        command = [sys.executable, "-c", RUNNER, str(checkout), engine, str(first_uid), job_type]
        process = subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return cls(name, process)

    def run(self) -> dict[str, float]:
        """Run one job. Raises RuntimeError when the process has ended; its error is on stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.name} has ended")
        taken: dict[str, float] = json.loads(answer)
        return taken

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def summary(self, name: str) -> dict[str, float]:
        """Return median and quartiles of `seconds` or `processor`, in milliseconds."""
        low, middle, high = statistics.quantiles([one[name] * 1000 for one in self.found], n=4)
        return {"median_ms": round(middle, 2), "quartile_1_ms": round(low, 2), "quartile_3_ms": round(high, 2)}


def measure(sides: list[Side], runs: int) -> dict[str, Any]:
    """Run `runs` rounds and return the summaries, and the ratios of the last side to the first.

    `paired_ratio` is the median over the rounds of the two jobs of one round: load that lasts longer than a round
    cancels out.
    """
    spec = random.Random(1)
    for number in range(WARM_UP + runs):
        for side in spec.sample(sides, len(sides)):
            taken = side.run()
            if number >= WARM_UP:
                side.found.append(taken)
    result: dict[str, Any] = {"runs": runs}
    for name in ("seconds", "processor"):
        result[name] = {side.name: side.summary(name) for side in sides}
        pairs = zip(sides[0].found, sides[-1].found, strict=True)
        medians = [result[name][side.name]["median_ms"] for side in (sides[0], sides[-1])]
        result[name]["ratio"] = round(medians[1] / medians[0], 3)
        result[name]["paired_ratio"] = round(statistics.median(new[name] / old[name] for old, new in pairs), 3)
    return result


def main() -> int:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(description="Compare what a job of `true` costs in two checkouts.")
    parser.add_argument("--baseline", type=Path, required=True, help="the checkout to compare this one with")
    parser.add_argument("--engine", default="bubblewrap", choices=("bubblewrap", "restricted"))
    parser.add_argument("--runs", type=int, default=200, help="jobs in each checkout")
    parser.add_argument("--type", default="steps", choices=("steps", "runtime"), help="what a job of it has traced")
    options = parser.parse_args()
    checkouts = {"baseline": options.baseline.resolve(), "this": HERE}
    sides = [
        Side.started(name, checkout, options.engine, uid, options.type)
        for (name, checkout), uid in zip(checkouts.items(), FIRST_UIDS, strict=True)
    ]
    try:
        found = {"engine": options.engine} | measure(sides, options.runs)
    finally:
        for side in sides:
            side.close()
    for name in ("seconds", "processor"):
        for side in sides:
            sys.stdout.write(f"{name:<10} {side.name:<9} {found[name][side.name]}\n")
        sys.stdout.write(f"{name:<10} ratio     {found[name]['ratio']} (paired {found[name]['paired_ratio']})\n")
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
