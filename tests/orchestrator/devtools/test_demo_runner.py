"""The demo refuses what it cannot hold, and shows what a job prints without letting it steer the terminal."""

import pytest

from orchestrator.devtools.demo import runner as shows
from orchestrator.devtools.demo.client import DemoError, DemoRequest
from orchestrator.devtools.demo.runner import DemoRun
from orchestrator.devtools.demo.terminal import Terminal
from orchestrator.devtools.process_supervisor import ProcessSupervisorError
from orchestrator.devtools.seed import SeedData
from workers.engines.contract import EngineCapabilities

STRANGE = DemoRequest("https://github.com/owner/name", "c" * 40, ("true",), 60)


@pytest.fixture
def machine(monkeypatch):
    """Engine name -> what is missing for it on this machine."""
    missing: dict[str, tuple[str, ...]] = {"bubblewrap": (), "restricted": ()}

    class Found:
        def __init__(self, name: str) -> None:
            self.name = name

        def check(self) -> EngineCapabilities:
            return EngineCapabilities(missing=missing[self.name])

    monkeypatch.setattr(shows, "engine_named", Found)
    return missing


def test_namespaces_are_taken_where_they_can_be_had(machine):
    assert DemoRun(Terminal(), None)._choose_engine() == "bubblewrap"
    assert DemoRun(Terminal(), STRANGE)._choose_engine() == "bubblewrap"


def test_without_namespaces_the_own_repository_runs_in_the_weaker_engine_and_that_is_shown_loudly(machine, capsys):
    machine["bubblewrap"] = ("no user namespaces",)
    assert DemoRun(Terminal(), None)._choose_engine() == "restricted"
    assert "THIS MACHINE FORBIDS NAMESPACES" in capsys.readouterr().out


def test_without_namespaces_a_strange_repository_is_refused(machine):
    machine["bubblewrap"] = ("no user namespaces",)
    with pytest.raises(DemoError, match="that is not the demo's: no user namespaces"):
        DemoRun(Terminal(), STRANGE)._choose_engine()


def test_without_any_engine_nothing_runs(machine):
    machine["bubblewrap"], machine["restricted"] = ("no user namespaces",), ("no Landlock",)
    with pytest.raises(DemoError, match="no user namespaces; no Landlock"):
        DemoRun(Terminal(), None)._choose_engine()


class Waiting:
    """A follower of a job that no worker takes."""

    is_canceled = False

    def submit(self, *_: object, **__: object) -> None:
        pass

    def cancel(self) -> None:
        self.is_canceled = True

    def job(self) -> dict[str, str]:
        return {"status": "queued"}

    def new_events(self) -> list[dict[str, str]]:
        return []

    def new_lines(self, **_: bool) -> list[str]:
        return []

    def pending_message(self) -> str:
        return "No worker is online in the pool shared-linux."


def test_a_job_that_no_worker_starts_ends_the_demo_with_advice(monkeypatch):
    monkeypatch.setattr(shows, "START_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(DemoError) as error:
        DemoRun(Terminal(), None)._follow(Waiting(), 3600)
    for part in (
        "no worker started the job within 0 s",
        "No worker is online in the pool",
        "stop it",
        "STATE_DIR=.state-demo",
    ):
        assert part in str(error.value)


def test_the_job_is_canceled_when_a_process_of_the_demo_died_too_often(monkeypatch):
    """Its data stay in STATE_DIR: the worker of the next `make up` would run the job."""
    run, follower = DemoRun(Terminal(), DemoRequest("https://github.com/a/b", "0" * 40, ("true",), 1)), Waiting()
    seeded = SeedData("demo", "demo", "", "", "", "", "", "admin", None)

    def died(*_: object) -> None:
        raise ProcessSupervisorError("local-1 ended with exit code 1, 6 times within 60 seconds")

    monkeypatch.setattr(shows.dev_server, "prepare", lambda: seeded)
    monkeypatch.setattr(shows, "JobFollower", lambda *_: follower)
    monkeypatch.setattr(run, "_start", lambda *_: "bubblewrap")
    monkeypatch.setattr(run, "_follow", died)
    with pytest.raises(ProcessSupervisorError):
        run.run()
    assert follower.is_canceled


def test_what_a_job_prints_does_not_steer_the_terminal(capsys):
    Terminal().output(["\x1b[2J\x1b]0;title\x07\r[bold]text[/bold] :smile: \u202e\x9b31m"])
    shown = capsys.readouterr().out
    assert set(shown) & {"\x1b", "\x07", "\r", "\x9b", "\u202e"} == set()
    assert "[bold]text[/bold] :smile:" in shown


def test_an_event_tells_its_reason():
    screen = Terminal()
    event = {
        "created_at": "2026-01-05T09:00:00Z",
        "to_state": "failed",
        "event_type": "job.failed",
        "actor": {"kind": "worker", "id": "wrk_1"},
        "payload": {"reason": "timed_out", "message": "after 60 s"},
    }
    with screen.console.capture() as shown:
        screen.event(event)
    assert shown.get().split() == ["0.00", "s", "●", "failed", "worker", "wrk_1", "timed_out", "after", "60", "s"]


def test_an_event_without_a_state_is_separated_from_its_actor():
    """`lease.released` fills the column of the states: `lease.releaseduid 61000 ...` was displayed."""
    screen = Terminal()
    event = {
        "created_at": "2026-01-05T09:00:00Z",
        "to_state": None,
        "event_type": "lease.released",
        "actor": {"kind": "worker", "id": "wrk_1"},
        "payload": {"message": "uid 61000 is in use by another worker on this machine"},
    }
    with screen.console.capture() as shown:
        screen.event(event)
        screen.event(event)  # the same actor again is left out
    first, second = shown.get().splitlines()
    assert "lease.released worker wrk_1  uid 61000" in first
    assert "lease.released uid 61000" in second
