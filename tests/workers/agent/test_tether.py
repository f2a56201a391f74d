from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.agent.scripted import wait_until
from workers.agent import subprocesses
from workers.agent.subprocesses import CommandLimits, CompletedCommand

CEILING = CommandLimits(file_bytes=1 << 20, memory_bytes=1 << 30, cpu_seconds=10)
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "ONLY": "this"}


def never() -> str | None:
    return None


def run(script: str, folder: Path, owner: int | None = None, watch: object = never) -> CompletedCommand:
    return subprocesses.run_bound(
        ["/bin/sh", "-c", script],
        folder=folder,
        environment=ENVIRONMENT,
        owner=owner,
        limits=CEILING,
        watch=watch,  # type: ignore[arg-type] # a watch
    )


def living(pid_file: Path) -> bool:
    try:
        state = Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_it_tells_the_code_and_the_last_words(open_dir: Path) -> None:
    done = run("echo first; echo last >&2; exit 7", open_dir)
    assert (done.code, done.tail, done.kill_reason) == (7, "first\nlast\n", None)


def test_only_the_environment_that_was_given_is_there(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    names = {line.partition("=")[0] for line in run("env", open_dir).tail.splitlines()}
    assert "ONLY" in names
    assert names <= {"ONLY", "PATH", "PWD", "SHLVL", "_", "OLDPWD"}


def test_nothing_can_be_read_from_the_worker_s_own_input_or_files(open_dir: Path) -> None:
    with Path("/etc/hostname").open("rb") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - its own signature
        done = run("ls /proc/self/fd | tr '\\n' ' '; cat", open_dir)
    assert done.code == 0
    assert set(done.tail.split()) <= {"0", "1", "2", "3"}


def test_a_flood_of_words_keeps_only_the_last_ones(open_dir: Path) -> None:
    done = run("yes x | head -c 3000000; echo end", open_dir)
    assert done.tail.endswith("end\n")
    assert len(done.tail) <= subprocesses.TAIL_BYTES


def test_the_watch_ends_the_whole_group_also_those_that_ignore_it(open_dir: Path, owner: int | None) -> None:
    (open_dir / "at").mkdir(mode=0o777)
    (open_dir / "at").chmod(0o777)
    pids = open_dir / "at" / "pid"
    begun = time.monotonic()
    script = f"trap '' TERM INT HUP; (trap '' TERM; sleep 300) & echo $! > {pids}; kill -STOP $$; wait"

    expired = subprocesses.deadline_watch(begun)

    def expired_once_both_run() -> str | None:
        return expired() if pids.exists() and pids.read_text().endswith("\n") else None

    done = run(script, open_dir / "at", owner, expired_once_both_run)
    assert done.kill_reason == "time"
    assert time.monotonic() - begun < 15
    assert not living(pids), "gone before it returns"


def test_what_it_left_running_does_not_outlive_it(open_dir: Path) -> None:
    pids = open_dir / "pid"
    done = run(f"sleep 300 >/dev/null 2>&1 & echo $! > {pids}", open_dir)
    assert done.code == 0
    assert not living(pids)


def test_limits_hold(open_dir: Path) -> None:
    assert run("ulimit -c; head -c 5000000 /dev/zero > large", open_dir).code != 0
    assert (open_dir / "large").stat().st_size <= CEILING.file_bytes


@pytest.mark.root
def test_the_account_of_the_slot_has_no_rights_of_ours(open_dir: Path) -> None:
    (open_dir / "at").mkdir()
    os.chown(open_dir / "at", 61999, 61999)
    tail = run("id -u; id -G; grep -E 'Cap(Inh|Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status", open_dir / "at", 61999).tail
    assert tail.split()[:2] == ["61999", "61999"]
    assert {line.split()[1] for line in tail.splitlines()[2:]} == {"0" * 16, "1"}


def test_a_watch_may_have_several_reasons() -> None:
    watch = subprocesses.deadline_watch(time.monotonic() + 60, lambda: None, lambda: "size", lambda: "stop")
    assert watch() == "size"
    assert subprocesses.deadline_watch(time.monotonic() - 1, lambda: "size")() == "time"


WORKER = """
import sys, threading
from pathlib import Path
from workers.agent import subprocesses
subprocesses.run_bound(["/bin/sh", "-c", sys.argv[2]], folder=Path(sys.argv[1]), environment={"PATH": "/usr/bin:/bin"},
           owner=None, limits=subprocesses.CommandLimits(1 << 20, 1 << 30, 10), watch=lambda: None)
"""


def test_the_group_dies_with_a_killed_worker(open_dir: Path) -> None:
    pids = open_dir / "pid"
    script = f"trap '' TERM; sh -c 'trap \"\" TERM; sleep 300' & echo $! > {pids}; wait"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(open_dir), script])
    try:
        wait_until(lambda: pids.exists() and pids.read_text().strip())
        assert living(pids)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    wait_until(lambda: not living(pids))


def test_a_group_whose_worker_is_gone_before_it_began_does_nothing(open_dir: Path) -> None:
    # The shell gets another parent than it has, as if the worker had died in between.
    command = ["/bin/sh", "-c", subprocesses.SHELL, "tether", "1", "touch", str(open_dir / "ran")]
    assert subprocess.run(command, check=False).returncode == 1
    assert not (open_dir / "ran").exists()
