"""`make chaos`, its short form: a few faults, and every invariant holds."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.paths import BASE_DIR
from tests.chaos.schedule import KINDS, schedule
from tests.workers.agent.worker_process import processes_with

pytestmark = pytest.mark.slow


def test_the_seed_repeats_the_schedule():
    assert schedule(7, 300) == schedule(7, 300) != schedule(8, 300)
    assert schedule(7, 20) == schedule(7, 300)[: len(schedule(7, 20))]
    assert {fault.kind for fault in schedule(7, 100)} == set(KINDS)


@pytest.mark.timeout(240)
def test_a_short_run_loses_nothing_and_leaves_nothing():
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "12", "--seed", "5"]
    process = subprocess.Popen(command, cwd=BASE_DIR, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=220)
    finally:
        process.send_signal(signal.SIGKILL)  # the kernel then kills the rest
        process.wait()
    assert process.returncode == 0, output
    figures = json.loads(output.splitlines()[-1])
    assert list(figures) == [
        *("seed", "jobs", "final", "double_results", "double_minutes", "lost_writes"),
        *("acknowledged_results", "lost_results", "audit", "recovery_seconds"),
    ]
    assert (figures["seed"], figures["double_results"], figures["double_minutes"]) == (5, 0, 0)
    assert (figures["lost_writes"], figures["lost_results"], figures["audit"]) == (0, 0, [])
    assert figures["jobs"] == figures["final"] > 0
    assert figures["acknowledged_results"] > 0
    (state,) = [line.removeprefix("in ") for line in output.splitlines() if line.startswith("in ")]
    assert not processes_with(state)
    assert not Path(state).exists()
