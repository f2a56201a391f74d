"""The steps of a workflow job, with scripted orders of the server and an engine that writes command files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.benches import a_bench
from tests.workers.agent.conftest import claim_body
from tests.workers.agent.scripted import Answer, ScriptedServer, problem
from workers.agent.checkout import Checkout
from workers.agent.context import WorkerContext
from workers.agent.http import wire
from workers.agent.http.client import OrchestratorClient, encoded
from workers.agent.http.wire import StepPayload, step_order
from workers.agent.job_runner import JobRunner
from workers.agent.workflow_job import (
    MAX_STATE_BYTES,
    MAX_VARIABLE_BYTES,
    CommandFileError,
    StepSequence,
    parse_assignments,
)
from workers.engines.contract import EngineUnavailable, MountPoints, RunLimits, RunResult, RunSpec
from workers.engines.null import FLAG, NullEngine

SECRET = "hunter2-correct-horse"


class Scene:
    """Steps of one job. `files` are the command files that each script leaves, by their names, or what executes it."""

    def __init__(self, root: Path, *files: Mapping[str, str] | Callable[[RunSpec], Any], **order: Any) -> None:
        self.files, self.order = files, order
        self.states: list[dict[str, Any]] = []
        self.specs: list[RunSpec] = []
        self.log: list[str] = []
        self.home = root / "job.private" / "home"
        (root / "job").mkdir()
        self.home.mkdir(parents=True)
        spec = RunSpec(argv=(), workspace=root / "job", slot=0, timeout_seconds=60, limits=RunLimits())
        self.steps = StepSequence(
            self, len(files), spec, MountPoints(home=str(self.home)), lambda _: self, self.execute,
            lambda _: None, lambda _: None,
        )  # fmt: skip

    def begin_step(self, index: int, state: dict[str, Any]) -> StepPayload:
        self.states.append(state)
        order = {"is_skipped": False, "run": "true", "step_id": f"s{index}", "continue_on_error": True}
        return step_order(order | self.order)

    def end_step(self, index: int, conclusion: str) -> None:
        self.log.append(conclusion)

    def note(self, text: str) -> None:
        self.log.append(text)

    def close(self) -> None:
        pass

    def execute(self, index: int, spec: RunSpec) -> RunResult:
        self.specs.append(spec)
        left = self.files[index]
        if callable(left):
            left(spec)
        else:
            Path(spec.argv[-1]).mkdir()
            for name, text in left.items():
                (Path(spec.argv[-1]) / name).write_text(text)
        return RunResult("exited", exit_code=0)


def test_a_command_file_is_refused_by_line_and_bounded_names(tmp_path: Path) -> None:
    """The message of a failure is not masked: it has no text that the step has written."""
    long_name = "A" * 300
    for text, expected in {
        f"A<<{SECRET}\nx": "GITHUB_ENV: The end of the value that begins in line 1 is missing.",
        f"{SECRET} ": "GITHUB_ENV: Line 1 is neither NAME=VALUE nor NAME<<END.",
        f"A<<E\n1\n2\nE\n{SECRET}=1": "GITHUB_ENV: Line 5 begins with no name.",
        f"{long_name}=\0": f"GITHUB_ENV: The value of {'A' * 39}… contains NUL.",
        f"B={'é' * (MAX_VARIABLE_BYTES // 2)}": "GITHUB_ENV: The value of B has 131,072 bytes or more.",
    }.items():
        with pytest.raises(CommandFileError) as refused:
            parse_assignments(text, "GITHUB_ENV")
        assert str(refused.value) == expected
    longest = "x" * (MAX_VARIABLE_BYTES - len("B=\0"))
    assert parse_assignments(f"B={longest}", "GITHUB_ENV") == {"B": longest}

    scene = Scene(tmp_path, {"ENV": f"GITHUB_{long_name}=1"}, {"PATH": "/a\0b"}, {"PATH": "/a\n" * 30_000})
    scene.steps.run()
    assert scene.log == [
        f"GITHUB_ENV: A step may not set GITHUB_{'A' * 32}….", "failure",
        "GITHUB_PATH: The file contains NUL.", "failure",
        "The steps left more than 65,536 bytes in GITHUB_PATH.", "failure",
    ]  # fmt: skip


def test_the_message_of_a_failure_is_one_bounded_line_without_values(tmp_path: Path) -> None:
    for name, order, message in (
        ("error", {"error": "a\nb " + "x" * 5000}, f"Step 1 of 1: a b {'x' * 982}…"),
        ("place", {"working_directory": SECRET}, "Step 1 of 1: The working directory is no directory in the workspace."),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        scene = Scene(tmp_path / name, {}, **order, continue_on_error=False)
        result = scene.steps.run()
        assert (result["reason"], result["message"]) == ("command_failed", message)
        assert len(result["message"]) <= 1000
        assert SECRET not in "".join(scene.log)


def test_what_a_step_leaves_counts_as_it_is_sent_and_counts_wholly_or_not(tmp_path: Path) -> None:
    """A sign of two bytes is six in the request, which the server reads up to a size."""
    half = {"ENV": f"A={'é' * 45_000}", "OUTPUT": "out=1"}
    scene = Scene(tmp_path, half, {"ENV": f"B={'é' * 45_000}", "OUTPUT": "out=2", "PATH": "/bin2"}, {})
    scene.steps.run()
    assert scene.log == ["success", "The steps left more than 524,288 bytes for later steps.", "failure", "success"]
    assert all(len(encoded(state)) < MAX_STATE_BYTES + 1000 for state in scene.states)
    last = scene.states[-1]
    assert list(last["env"]) == ["A"]
    assert last["steps"]["s0"] == {"outcome": "success", "conclusion": "success", "outputs": {"out": "1"}}
    assert (last["steps"]["s1"]["outcome"], last["steps"]["s1"]["outputs"]) == ("failure", {})
    assert "/bin2" not in scene.specs[-1].argv


def test_command_files_are_those_of_the_step_whatever_its_home_is(tmp_path: Path) -> None:
    """A step that ends before its script begins leaves nothing, also if a step before has left something."""

    def in_shell(spec: RunSpec) -> None:
        environment = {"PATH": os.defpath, "HOME": str(tmp_path / "elsewhere"), "TMPDIR": str(tmp_path)}
        subprocess.run(spec.argv, env=environment, cwd=tmp_path, check=True)

    script = 'echo A=1 >> "$GITHUB_ENV"; echo out=1 >> "$SHITHUB_OUTPUT"; echo /bin1 >> "$GITHUB_PATH"'
    scene = Scene(tmp_path, in_shell, lambda _: None, {}, run=script)
    scene.steps.run()
    assert scene.log == ["success"] * 3
    last = scene.states[-1]
    assert [last["steps"][step]["outputs"] for step in ("s0", "s1")] == [{"out": "1"}, {}]
    assert (last["env"], scene.specs[-1].argv[5]) == ({"A": "1"}, "/bin1")
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def bench(
    server: ScriptedServer, client: OrchestratorClient, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerContext]:
    monkeypatch.setenv(FLAG, "1")
    with a_bench(server, client, open_dir, NullEngine()) as made:
        yield made


def run_job(bench: WorkerContext, server: ScriptedServer, *orders: Answer, **answers: list[Answer]) -> list[str]:
    """Run a job whose steps have these orders, and return the calls of its worker from the start of the steps on."""
    body = claim_body(job_type="actions", source=None, heartbeat_interval_seconds=60)
    del body["job"]["execution"]
    body["job"]["actions"] = {
        "job_key": "build", "timeout_seconds": 60, "allow_network": False, "least_isolation": "none", "egress": [],
    }  # fmt: skip
    started = {"repository": "alice/demo", "head_sha": "a" * 40, "checkout_token": "t", "step_count": len(orders)}
    for call, given in ({"start": [Answer(200, started)], "begin": orders} | answers).items():
        server.on(call, *given)
    server.asked.clear()
    JobRunner(bench, wire.lease(body), slot=0).run()
    calls = [asked.call if asked.call != "report" else asked.json["phase"] for asked in server.asked]
    return [call for call in calls if call not in ("logs", "heartbeat")][1:]


SKIPPED = Answer(200, {"is_skipped": True})


def test_a_job_runs_from_its_first_step_on_and_is_not_released(bench: WorkerContext, server: ScriptedServer) -> None:
    """Else another worker runs again what has ended, such as a deployment."""
    calls = run_job(bench, server, SKIPPED)
    assert calls == ["checking_out", "start", "executing", "begin", "complete"]
    failing = Answer(200, {"is_skipped": False, "run": "true"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.engine, "run", lambda *_, **__: raise_(EngineUnavailable("gone")))
        calls = run_job(bench, server, SKIPPED, failing)
    assert calls[-1] == "fail"
    (failed,) = server.received("fail")
    assert failed.json["result"]["reason"] == "sandbox_unavailable"


def test_a_job_whose_step_is_refused_ends_with_the_words_of_the_server(
    bench: WorkerContext, server: ScriptedServer
) -> None:
    error = Answer(200, {"is_skipped": False, "error": "no", "continue_on_error": True})
    refusal = problem(409, "illegal_move", detail="The step has ended.")
    for call in ("start", "begin", "end"):
        assert run_job(bench, server, error, **{call: [refusal]})[-1] == "fail", call
        (failed,) = server.received("fail")
        result = failed.json["result"]
        assert result["reason"] == "worker_error"
        assert result["message"] == "The server refused a step: 409 illegal_move: The step has ended."


def test_each_checkout_has_a_token_of_its_own(bench: WorkerContext, server: ScriptedServer) -> None:
    """A token lasts for minutes, and the steps before may take hours."""
    tokens: list[str] = []
    started = [
        Answer(200, {"repository": "alice/demo", "head_sha": "a" * 40, "checkout_token": token, "step_count": 2})
        for token in ("first", "second", "third")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkout, "fetch", lambda *_, token, **__: tokens.append(token))
        checkout = Answer(200, {"is_skipped": False, "uses": "actions/checkout@v4"})
        assert run_job(bench, server, checkout, checkout, start=started)[-1] == "complete"
    assert tokens == ["second", "third"]


def raise_(error: Exception) -> None:
    raise error
