"""Measures what the trace of a job costs: a compile of a small C project, 10,000 opens, 200 forks.

    python -m benchmarks.traced [--baseline ../other-checkout] [--rounds 5]

Each job runs bare, in the default engine with its trace read into a report as the worker does it, and, where the
checkout can, with a trace of processes and network only, and without one. Rounds are in turns. Measured is processor
time: of everything, and of the Python that reads the trace (the worker's own process, and the process of the slot).
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import Cluster
from benchmarks.sandbox_overhead import FIRST_UIDS, HERE
from benchmarks.sizes import Sizes

ROUNDS = 5
WARM_UP = 1

# Runs in each checkout with that checkout's worker packages alone: a line in is a job and how it runs, a line out its
# processor times. The programs are compiled once.
RUNNER = """
import json, os, resource, shutil, subprocess, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from workers.engines import engine_named
from workers.engines.contract import RunLimits, RunSpec, StopSignal
from workers.report.report import RunReport, encoded
try:
    from workers.report.trace_reader import TraceReaders
    from workers.engines.contract import TraceLevel
except ImportError:  # a checkout that reads its traces in the worker's process
    TraceReaders = None

OPENS = '''
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    char path[64];
    for (int n = 0; n < 10000; n++) {
        sprintf(path, "files/%d", n % 500);
        close(open(path, O_RDONLY));
    }
    return 0;
}
'''
SOURCE = '''
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int f%d(const char *text) { return printf("%%s", text) + (int)strlen(text); }
'''
JOBS = {
    "compile": 'for f in a*.c main.c; do gcc -O1 -c $f -o "${f%.c}.o" || exit 1; done; gcc *.o -o program',
    "opens": "./opens",
    "forks": 'n=0; while [ $n -lt 200 ]; do /bin/true; n=$((n + 1)); done',
}
METADATA = {"org_slug": "acme", "project_slug": "web", "repo_url": "", "git_commit": "a" * 40, "command": ["sh"],
            "trigger_kind": "manual", "worker_id": "w", "job_id": "j"}

def used(who):
    return sum(resource.getrusage(who)[:2])

def filled(workspace):
    for number in range(13):
        (workspace / f"a{number}.c").write_text(SOURCE % number)
    (workspace / "main.c").write_text("int main(void) { return 0; }")
    (workspace / "files").mkdir()
    for number in range(500):
        (workspace / "files" / str(number)).write_text("x")
    shutil.copy(base / "opens", workspace / "opens")

def reported(spec):
    if TraceReaders is None:
        report = RunReport(engine.mount_points(spec))
        ended = engine.run(spec, output=len, trace=report.feed, stop=StopSignal())
        encoded(report.payload(metadata=METADATA, result=ended, spec=spec))
        return ended
    with readers.reading(0, engine.mount_points(spec)) as reader:
        ended = engine.run(spec, output=len, trace=reader.feed, stop=StopSignal())
        reader.payload(metadata=METADATA, result=ended, spec=spec)
    return ended

def of_reader():
    # Processor seconds of the slot's process, which is not waited for between two jobs.
    if TraceReaders is None or not readers._idle:
        return 0.0
    fields = Path(f"/proc/{readers._idle[0].pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9

readers = TraceReaders() if TraceReaders else None
engine = engine_named("bubblewrap", first_uid=int(sys.argv[2]))
assert not engine.check().missing
engine.reserved(0).__enter__()
base = Path(tempfile.mkdtemp(prefix="traced-"))
base.chmod(0o711)
try:
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", base / "opens"], input=OPENS, text=True, check=True)
    for line in sys.stdin:
        job, mode = line.split()
        folder = base if mode == "bare" else engine.directory(0, base, RunLimits())
        workspace = folder / "job"
        workspace.mkdir()
        filled(workspace)
        own, children, reader = used(resource.RUSAGE_SELF), used(resource.RUSAGE_CHILDREN), of_reader()
        if mode == "bare":
            subprocess.run(["sh", "-c", JOBS[job]], cwd=workspace, check=True, stdout=subprocess.DEVNULL)
        else:
            for path in (workspace, *workspace.rglob("*")):
                os.chown(path, engine.owner(0), engine.owner(0))
            more = {} if mode == "full" else {"trace": TraceLevel(mode)}
            spec = RunSpec(argv=("sh", "-c", JOBS[job]), workspace=workspace, slot=0, timeout_seconds=300, **more)
            own = used(resource.RUSAGE_SELF)
            ended = engine.run(spec, output=len, trace=len, stop=StopSignal()) if mode == "none" else reported(spec)
            assert (ended.kind, ended.exit_code) == ("exited", 0), ended
        python = used(resource.RUSAGE_SELF) - own
        reader = of_reader() - reader
        found = {"python": python + reader, "worker": python,
                 "all": python + reader + used(resource.RUSAGE_CHILDREN) - children}
        shutil.rmtree(workspace)
        print(json.dumps(found), flush=True)
finally:
    if readers:
        readers.close()
    shutil.rmtree(base, ignore_errors=True)
"""
JOBS = ("compile", "opens", "forks")
MODES = ("bare", "full", "network", "none")
Figures = dict[str, dict[str, dict[str, float]]]


def measure(_cluster: Cluster, _sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `traced`: milliseconds of each job and mode, and the ratios that have an aim."""
    if shutil.which("gcc") is None:
        return {"traced": {"missing": "gcc is not installed"}}
    found = compared({"this": HERE}, ROUNDS)["this"]
    return {"traced": found} | ratios(found)


def ratios(found: Figures) -> dict[str, float]:
    """Return all processor time ÷ bare with and without a trace, and the trace's Python ÷ bare, for the compile."""
    modes = found["compile"]
    bare = modes["bare"]["all_ms"]
    result = {
        "traced_vs_bare": modes["full"]["all_ms"] / bare,
        "trace_python": modes["full"]["python_ms"] / bare,
    }
    if "none" in modes:
        result["untraced_vs_bare"] = modes["none"]["all_ms"] / bare
    return {name: round(value, 2) for name, value in result.items()}


def compared(checkouts: dict[str, Path], rounds: int) -> dict[str, Figures]:
    """Return `all_ms`, `python_ms` and `worker_ms` by checkout, job and mode: medians."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(checkout), str(uid)], cwd=checkout, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )
        for (name, checkout), uid in zip(checkouts.items(), FIRST_UIDS, strict=False)
    }  # fmt: skip
    seen: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    try:
        for number in range(WARM_UP + rounds):
            for job in JOBS:
                for mode in MODES:
                    for name, process in processes.items():
                        if mode in {"bare", "full"} or _has_levels(checkouts[name]):
                            taken = _run(process, job, mode)
                            if number >= WARM_UP:
                                seen.setdefault((name, job, mode), []).append(taken)
    finally:
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
    result: dict[str, Figures] = {}
    for (name, job, mode), runs in seen.items():
        figures = {f"{figure}_ms": round(median(run[figure] for run in runs) * 1000, 1) for figure in runs[0]}
        result.setdefault(name, {}).setdefault(job, {})[mode] = figures
    return result


def _has_levels(checkout: Path) -> bool:
    return "trace:" in (checkout / "workers/engines/contract.py").read_text().partition("class RunSpec")[2][:2_000]


def _run(process: subprocess.Popen[str], job: str, mode: str) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{job} {mode}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"the process for {job} {mode} has ended; its error is on stderr")
    taken: dict[str, float] = json.loads(answer)
    return taken


def main() -> int:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(description="Measure what a trace costs, also in turns with another checkout.")
    parser.add_argument("--baseline", type=Path, help="the checkout to compare this one with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each job and mode")
    options = parser.parse_args()
    checkouts = {"baseline": options.baseline.resolve()} if options.baseline else {}
    found = compared(checkouts | {"this": HERE}, options.rounds)
    for name, jobs in found.items():
        for job, modes in jobs.items():
            for mode, figures in modes.items():
                sys.stdout.write(f"{name:<9} {job:<8} {mode:<7} {figures}\n")
        sys.stdout.write(f"{name:<9} {ratios(jobs)}\n")
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
