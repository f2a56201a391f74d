"""The worker's limit of open files, which its jobs together must not use up."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.agent import open_files, subprocesses

RAISED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 8192))
from workers.agent.open_files import raise_limit
raise_limit({capacity})
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("capacity", "soft"), [(1, open_files.OWN + open_files.PER_JOB), (64, 8192)])
def test_the_limit_is_raised_to_what_the_jobs_can_take(capacity: int, soft: int) -> None:
    script = RAISED.format(capacity=capacity)
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(done.stdout) == soft
    assert ("lower --capacity" in done.stderr) == (capacity == 64)


def test_a_program_runs_beside_a_thousand_open_files(tmp_path: Path) -> None:
    """select() would refuse the number of the program's output."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = []
    try:
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
        done = subprocesses.run_bound(
            ["sh", "-c", "echo out; exec >&- 2>&-; sleep 0.3; exit 3"],
            folder=tmp_path,
            environment={"PATH": "/usr/bin:/bin"},
            owner=None,
            limits=subprocesses.CommandLimits(1 << 20, 1 << 30, 10),
            watch=subprocesses.deadline_watch(time.monotonic() + 10),
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (done.code, done.tail, done.kill_reason) == (3, "out\n", None)
