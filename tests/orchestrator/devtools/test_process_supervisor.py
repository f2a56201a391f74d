"""Children are watched, started again, stopped in order, and never outlive the process that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.devtools import process_supervisor as crews
from orchestrator.devtools.process_supervisor import ManagedProcess, ProcessSupervisor, ProcessSupervisorError

ROOT = Path(__file__).resolve().parents[3]
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
POLITE = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether it still does anything: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def said() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def crew(said) -> Iterator[ProcessSupervisor]:
    crew = ProcessSupervisor([], lambda name, line: said.append((name, line)))
    yield crew
    for member in crew.members:
        member.signal(signal.SIGKILL)
        if member.process:
            member.process.wait()


def add(crew: ProcessSupervisor, name: str, script: str, *, is_vital: bool = True) -> ManagedProcess:
    member = ManagedProcess(name, ["sh", "-c", script], {"PATH": os.environ["PATH"]}, is_vital)
    crew.members.append(member)
    crew.start(member)
    return member


def test_what_a_member_prints_is_said_under_its_name(crew, said):
    add(crew, "one", "echo out; echo err >&2")
    eventually(lambda: set(said) == {("one", "out"), ("one", "err")})


def test_a_member_that_dies_is_started_again_and_that_is_said(crew, said, monkeypatch):
    monkeypatch.setattr(crews, "RESTART_AFTER", 0.0)
    member = add(crew, "one", POLITE)
    first = member.process
    first.kill()
    first.wait()
    crew.look()
    crew.look()
    assert member.process is not first
    assert member.is_running
    assert ("", "one was killed by SIGKILL; starting it again (1 of 5)") in said


def test_a_vital_member_that_keeps_dying_ends_it_all(crew, monkeypatch):
    monkeypatch.setattr(crews, "RESTART_AFTER", 0.0)
    add(crew, "one", "exit 3")
    with pytest.raises(ProcessSupervisorError, match="one ended with exit code 3, 6 times"):
        look_for_long(crew)


def test_a_member_that_is_not_vital_is_given_up_alone(crew, said, monkeypatch):
    monkeypatch.setattr(crews, "RESTART_AFTER", 0.0)
    other = add(crew, "other", POLITE)
    add(crew, "one", "exit 3", is_vital=False)
    eventually(lambda: crew.look() or any("not started any more" in line for _, line in said))
    crew.look()
    assert other.is_running


def look_for_long(crew: ProcessSupervisor) -> None:
    eventually(lambda: crew.look() or False, 60)


def test_the_first_member_stops_last(crew, said):
    add(crew, "server", POLITE)
    add(crew, "worker", POLITE)
    eventually(lambda: said.count(("server", "ready")) + said.count(("worker", "ready")) == 2)
    crew.stop()
    assert [name for name, line in said if line == "bye"] == ["worker", "server"]


def test_a_member_that_does_not_listen_is_killed(crew, said, monkeypatch):
    monkeypatch.setattr(crews, "PATIENCE", 0.2)
    member = add(crew, "one", STUBBORN)
    eventually(lambda: ("one", "ready") in said)
    crew.stop()
    assert member.process.returncode == -signal.SIGKILL


def test_every_further_request_to_stop_goes_one_step_further(crew, said, monkeypatch):
    monkeypatch.setattr(crews, "PATIENCE", 60.0)
    member = add(crew, "one", STUBBORN)
    eventually(lambda: ("one", "ready") in said)
    begun = time.monotonic()
    monkeypatch.setattr(time, "sleep", lambda _seconds: crew.ask_to_stop())
    crew.stop()
    assert member.process.returncode == -signal.SIGKILL
    assert time.monotonic() - begun < 30


def test_ctrl_c_reaches_a_member_only_through_the_crew(crew):
    member = add(crew, "one", POLITE)
    assert os.getsid(member.process.pid) != os.getsid(0)


def test_no_member_outlives_a_killed_parent():
    script = (
        "import os, time\n"
        "from orchestrator.devtools.process_supervisor import ProcessSupervisor, ManagedProcess\n"
        "crew = ProcessSupervisor([], lambda name, line: print(line, flush=True))\n"
        "crew.start(ManagedProcess('one', ['sh', '-c', 'echo $$; exec sleep 600'], os.environ))\n"
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
    assert "DATABASE_ROLE" not in crews.child_environment()
