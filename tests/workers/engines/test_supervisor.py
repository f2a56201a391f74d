"""The end of a run is classified rightly in every order of what can end it: none is reported as another one.

A job whose time was up was once reported as `command_failed`, and once without a result. The supervisor sees the world
only when it asks, so an order is: before which question each event happens. All orders are tried.
"""

import itertools
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workers.agent.http.wire import StepsPayload
from workers.agent.steps import StepTracker
from workers.engines.contract import RunResult, RunSpec, StopSignal
from workers.engines.limits.cgroups import ControlGroup
from workers.engines.sandbox import exit_status, processes, supervisor
from workers.engines.sandbox.processes import HostProcess
from workers.engines.sandbox.supervisor import RunSupervisor

SPEC = RunSpec(argv=("sh",), workspace=Path("/job"), slot=0, timeout_seconds=100.0, grace_seconds=2.0)
# What can happen to a run, other than by the supervisor.
EVENTS = ("exit 0", "exit 7", "time", "stop", "stop now", "limit", "outsider")
QUESTIONS = 9  # more than the longest run asks before it has seen all events


class World:
    """A command in a sandbox, and a clock. Each question of the supervisor may let an event happen first.

    Args:
        order: The number of the question before which each event happens.
        obeys: Whether SIGTERM ends the command.
    """

    def __init__(self, order: dict[str, int], *, obeys: bool = True) -> None:
        self.order, self.obeys = dict(order), obeys
        self.asked = 0
        self.now = 0.0
        self.end: tuple[int | None, str | None] | None = None  # exit code and signal of the command
        self.ended_by: str | None = None
        self.top_ended = False
        self.exceeded: str | None = None
        self.stop = StopSignal()
        self.happened: list[str] = []
        self.returncode = None
        self.pid = 1

    def ask(self) -> None:
        self.asked += 1
        self.now += 0.02
        for event in [event for event, question in self.order.items() if question == self.asked]:
            del self.order[event]
            self.happen(event)

    def happen(self, event: str) -> None:
        if event.startswith("exit"):
            self.die(int(event.split()[1]), None, by="itself")
            self.top_ended |= event == "exit 0"  # the other one leaves a process running
        elif event == "outsider":
            self.die(None, "SIGKILL", by="outsider")
        elif event == "time":
            self.now = max(self.now, SPEC.timeout_seconds)
        elif event == "limit":
            self.exceeded = "disk_full"
        else:
            self.stop.request(now=event == "stop now")
        self.happened.append(event)

    def die(self, code: int | None, name: str | None, *, by: str) -> None:
        if self.end is None:
            self.end, self.ended_by = (code, name), by

    # --- what the supervisor asks and does ----------------------------------------------------------------------------

    def poll(self) -> int | None:
        self.ask()
        return 0 if self.top_ended else None

    def has_ended(self, _pid: int, *, within: float = 0.0) -> bool:
        self.ask()
        self.now += within
        return self.top_ended

    def command_ended(self) -> bool:
        self.ask()
        return self.end is not None

    def members(self) -> list[HostProcess]:
        self.ask()
        return [] if self.end else [HostProcess(pid=2, parent=1, born=0, state="S")]

    def send(self, _process: HostProcess, number: int) -> None:
        assert number == signal.SIGTERM
        self.ask()
        if self.obeys:
            self.die(None, "SIGTERM", by="supervisor")

    def kill(self) -> None:
        self.ask()
        self.die(None, "SIGKILL", by="supervisor")
        self.top_ended = True

    def monotonic(self) -> float:
        return self.now

    def supervise(self) -> str | None:
        return RunSupervisor(
            SPEC, self.stop, self, members=self.members, kill=self.kill,
            exceeded_limit=lambda: self.exceeded, command_ended=self.command_ended,
        ).wait()  # fmt: skip


@pytest.fixture
def world(monkeypatch):
    """A function that supervises one order of events and returns the world and the kind of the end."""

    def run(order: dict[str, int], *, obeys: bool) -> tuple[World, str | None, str]:
        made = World(order, obeys=obeys)
        with monkeypatch.context() as patch:
            patch.setattr(processes, "has_ended", made.has_ended)
            patch.setattr(processes, "send", made.send)
            patch.setattr(supervisor.time, "monotonic", made.monotonic)
            reason = made.supervise()
        code, name = made.end
        kind, _, _ = exit_status.classify_exit(exit_status.Observation(reason, code, name))
        return made, reason, kind

    return run


def orders():
    """Yields all orders of up to three events; the last one ends the run, if no other does."""
    for size in (1, 2, 3):
        for events in itertools.combinations(EVENTS, size):
            if not {"exit 0", "exit 7", "outsider", "time"} & set(events):
                continue  # nothing would end a stop or a limit sooner than the time, which is tried with them
            for questions in itertools.product(range(1, QUESTIONS + 1), repeat=size):
                yield dict(zip(events, questions, strict=True))


@pytest.mark.parametrize("obeys", [True, False], ids=["obeys", "ignores SIGTERM"])
def test_in_every_order_the_cause_of_the_end_is_reported(world, obeys):
    reported = {"time": "timeout", "stop": "stopped", "stop now": "stopped", "limit": "disk_full"}
    number = 0
    for order in orders():
        made, reason, kind = world(order, obeys=obeys)
        number += 1
        if made.ended_by == "supervisor":
            # Whatever the supervisor ended has one of the causes that had happened: it never looks like the command's.
            assert kind in {reported[event] for event in made.happened if event in reported}, (order, kind)
        if kind in {"exited", "signaled"}:
            assert reason is None
            assert made.ended_by in {"itself", "outsider"}, (order, kind)
        if reason == "timeout":
            assert "time" in made.happened, order
        if made.happened[0] == "exit 0":
            assert kind == "exited", order
        only_time = not {"stop", "stop now", "limit"} & set(made.happened)
        if "time" in made.happened and only_time and made.ended_by == "supervisor":
            assert kind == "timeout", order
    assert number > 10_000


def test_an_end_from_outside_is_all_that_looks_like_a_failing_command(world):
    """Another process of the machine killed the command before its time was up: that was `command_failed`."""
    _, reason, kind = world({"outsider": 3, "time": 9}, obeys=True)
    assert (reason, kind) == (None, "signaled")


# --- the steps of a job ------------------------------------------------------------------------------------------------


class Steps:
    """Runs steps of these lengths by a clock of its own."""

    def __init__(self, monkeypatch, *ends: tuple[float, RunResult]) -> None:
        self.now, self.ends, self.specs = 0.0, list(ends), []
        monkeypatch.setattr("workers.agent.steps.time.monotonic", lambda: self.now)

    def execute(self, _index: int, spec: RunSpec) -> RunResult:
        self.specs.append(spec)
        seconds, result = self.ends.pop(0)
        self.now += seconds
        return result

    def run(self) -> dict:
        payload = StepsPayload(
            steps=tuple(f"step {place}" for place in range(len(self.ends))), working_directory=".", environment={},
            artifacts=(), caches=(), timeout_seconds=10, allow_network=False, egress=(), allow_exec=True, least_isolation="none", trace="none",
            image=None,
        )  # fmt: skip
        return StepTracker(payload, replace(SPEC, argv=()), self.execute).run()


def test_no_step_begins_when_the_time_is_up(monkeypatch):
    """The sandbox's own start and end take time, too. A short step after the end of the time decided the result."""
    for last in (RunResult("exited", exit_code=0), RunResult("exited", exit_code=1)):
        steps = Steps(monkeypatch, (10.0, RunResult("exited", exit_code=0)), (0.01, last))
        result = steps.run()
        assert (result["status"], result["reason"], len(result["steps"])) == ("failed", "timed_out", 1)
        assert result["message"] == "The command ran longer than 10 s and was stopped."
        assert [spec.timeout_seconds for spec in steps.specs] == [10.0]


def test_a_step_has_what_is_left_of_the_time(monkeypatch):
    steps = Steps(monkeypatch, (9.5, RunResult("exited", exit_code=0)), (0.25, RunResult("exited", exit_code=0)))
    assert steps.run()["status"] == "succeeded"
    assert [spec.timeout_seconds for spec in steps.specs] == [10.0, 0.5]


# --- the end of the processes ------------------------------------------------------------------------------------------


def test_a_slow_kill_is_repeated_and_is_no_error(monkeypatch):
    """A loaded machine started `setpriv` so late that the run ended with `TimeoutExpired`, and without a result."""
    calls = []

    def run(command, **_):
        calls.append(command)
        if len(calls) == 1:
            raise subprocess.TimeoutExpired(command, 3)

    alive = iter([[7], [7], []])
    monkeypatch.setattr(processes, "of_uid", lambda _uid: next(alive))
    monkeypatch.setattr(subprocess, "run", run)
    assert processes.kill_uid(200_000)
    assert len(calls) == 2


class Clock:
    """A clock that a loaded machine's processes see: 2.5 s pass with each look at what is left."""

    def __init__(self, monkeypatch, *left: list[int]) -> None:
        self.now, self.left = 0.0, list(left)
        monkeypatch.setattr(processes.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(processes.time, "sleep", lambda _seconds: None)

    def look(self, *_: object) -> list[int]:
        self.now += 2.5
        return self.left.pop(0) if self.left else []


def test_the_run_waits_for_processes_that_die_late(monkeypatch, tmp_path):
    """After three seconds it was `Processes of the job are still alive`: a failure of the sandbox, without a result."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(processes, "of_uid", Clock(monkeypatch, [7], [7], [7]).look)
    assert processes.kill_uid(200_000)
    group = ControlGroup(1, {"memory": tmp_path})
    monkeypatch.setattr(ControlGroup, "pids", Clock(monkeypatch, [7], [7], [7]).look)
    assert group.kill()


def test_the_run_does_not_wait_for_ever(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(processes, "of_uid", Clock(monkeypatch, *[[7]] * 99).look)
    assert not processes.kill_uid(200_000)
    monkeypatch.setattr(ControlGroup, "pids", Clock(monkeypatch, *[[7]] * 99).look)
    assert not ControlGroup(1, {"memory": tmp_path}).kill()
