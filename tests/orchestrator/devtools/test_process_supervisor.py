"""Children are watched, started again, stopped in order, and never outlive the process that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.devtools import process_supervisor
from orchestrator.devtools.process_supervisor import ManagedProcess, ProcessSupervisor, ProcessSupervisorError
from tests.live_server import eventually

ROOT = Path(__file__).resolve().parents[3]
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
POLITE = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


def is_alive(pid: int) -> bool:
    """Whether it still does anything: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def log() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def supervisor(log) -> Iterator[ProcessSupervisor]:
    supervisor = ProcessSupervisor([], lambda name, line: log.append((name, line)))
    yield supervisor
    for process in supervisor.processes:
        process.signal(signal.SIGKILL)
        if process.process:
            process.process.wait()


def add(supervisor: ProcessSupervisor, name: str, script: str, *, is_vital: bool = True) -> ManagedProcess:
    process = ManagedProcess(name, ["sh", "-c", script], {"PATH": os.environ["PATH"]}, is_vital)
    supervisor.processes.append(process)
    supervisor.start(process)
    return process


def test_what_a_member_prints_is_shown_under_its_name(supervisor, log):
    add(supervisor, "one", "echo out; echo err >&2")
    eventually(lambda: set(log) == {("one", "out"), ("one", "err")})


def test_a_member_that_dies_is_started_again_and_that_is_shown(supervisor, log, monkeypatch):
    monkeypatch.setattr(process_supervisor, "RESTART_DELAY_SECONDS", 0.0)
    process = add(supervisor, "one", POLITE)
    first = process.process
    first.kill()
    first.wait()
    supervisor.poll()
    supervisor.poll()
    assert process.process is not first
    assert process.is_running
    assert ("", "one was killed by SIGKILL; starting it again (1 of 5)") in log


def test_a_vital_member_that_keeps_dying_ends_it_all(supervisor, monkeypatch):
    monkeypatch.setattr(process_supervisor, "RESTART_DELAY_SECONDS", 0.0)
    add(supervisor, "one", "exit 3")
    with pytest.raises(ProcessSupervisorError, match="one ended with exit code 3, 6 times"):
        poll_until_error(supervisor)


def test_a_member_that_is_not_vital_is_given_up_alone(supervisor, log, monkeypatch):
    monkeypatch.setattr(process_supervisor, "RESTART_DELAY_SECONDS", 0.0)
    other = add(supervisor, "other", POLITE)
    add(supervisor, "one", "exit 3", is_vital=False)
    eventually(lambda: supervisor.poll() or any("not started any more" in line for _, line in log))
    supervisor.poll()
    assert other.is_running


def poll_until_error(supervisor: ProcessSupervisor) -> None:
    eventually(lambda: supervisor.poll() or False, 60)


def test_the_first_member_stops_last(supervisor, log, tmp_path):
    ended = tmp_path / "ended"  # the lines of two members reach `log` in any order
    for name in ("server", "worker"):
        add(supervisor, name, POLITE.replace("echo bye", f"echo {name} >> {ended}"))
    eventually(lambda: log.count(("server", "ready")) + log.count(("worker", "ready")) == 2)
    supervisor.stop()
    assert ended.read_text().split() == ["worker", "server"]


def test_a_member_that_does_not_listen_is_killed(supervisor, log, monkeypatch):
    monkeypatch.setattr(process_supervisor, "STOP_TIMEOUT_SECONDS", 0.2)
    process = add(supervisor, "one", STUBBORN)
    eventually(lambda: ("one", "ready") in log)
    supervisor.stop()
    assert process.process.returncode == -signal.SIGKILL


def test_every_further_request_to_stop_goes_one_step_further(supervisor, log, monkeypatch):
    monkeypatch.setattr(process_supervisor, "STOP_TIMEOUT_SECONDS", 60.0)
    process = add(supervisor, "one", STUBBORN)
    eventually(lambda: ("one", "ready") in log)
    begun = time.monotonic()
    monkeypatch.setattr(time, "sleep", lambda _seconds: supervisor.request_stop())
    supervisor.stop()
    assert process.process.returncode == -signal.SIGKILL
    assert time.monotonic() - begun < 30


def test_ctrl_c_reaches_a_member_only_through_the_crew(supervisor):
    process = add(supervisor, "one", POLITE)
    assert os.getsid(process.process.pid) != os.getsid(0)


def test_no_member_outlives_a_killed_parent():
    script = (
        "import os, time\n"
        "from orchestrator.devtools.process_supervisor import ProcessSupervisor, ManagedProcess\n"
        "supervisor = ProcessSupervisor([], lambda name, line: print(line, flush=True))\n"
        "supervisor.start(ManagedProcess('one', ['sh', '-c', 'echo $$; exec sleep 600'], os.environ))\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
        parent.wait()
    eventually(lambda: not is_alive(child))


def test_a_child_does_not_inherit_its_parents_timeouts(monkeypatch):
    monkeypatch.setenv("DATABASE_ROLE", "migrate")
    assert "DATABASE_ROLE" not in process_supervisor.child_environment()
