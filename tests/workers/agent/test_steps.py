"""A job of steps, with the null engine and a scripted server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.benches import a_bench, running
from tests.workers.agent.conftest import LEASE_ID, claim_body
from tests.workers.agent.repositories import Repository
from tests.workers.agent.scripted import Answer, Asked, ScriptedServer, hang_up, problem, stale, wait_until
from tests.workers.traced import RECORDED, trace
from workers.agent import artifacts
from workers.agent.context import WorkerContext
from workers.agent.errors import ProtocolError
from workers.agent.http import wire
from workers.agent.http.client import OrchestratorClient
from workers.agent.http.wire import PatternPayload
from workers.agent.job_runner import JobRunner
from workers.agent.run_recorder import MAX_STEP_FINDINGS
from workers.engines.contract import RunResult, RunSpec, TraceLevel
from workers.engines.null import FLAG, NullEngine

CANCEL = Answer(200, {"cancel_requested": True, "cancel_reason": "requested", "cancel_deadline_seconds": 30})
FINAL = ("complete", "fail", "release", "acknowledge-cancel")


@pytest.fixture
def bench(
    server: ScriptedServer, client: OrchestratorClient, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerContext]:
    monkeypatch.setenv(FLAG, "1")
    with a_bench(server, client, open_dir, NullEngine()) as made:
        yield made


def steps_body(*lines: str, source: Any = None, **changes: Any) -> dict[str, Any]:
    body = claim_body(job_type="steps", source=source, heartbeat_interval_seconds=0.2)
    del body["job"]["execution"]
    body["job"]["steps"] = {
        "name": "unit", "steps": list(lines), "working_directory": ".", "environment": {}, "artifacts": [],
        "caches": [], "image": None, "timeout_seconds": 60, "allow_network": False, "least_isolation": "none",
        "egress": [],
    } | changes  # fmt: skip
    return body


def a_run(bench: WorkerContext, *lines: str, **changes: Any) -> JobRunner:
    return JobRunner(bench, wire.lease(steps_body(*lines, **changes)), slot=0)


def finals(server: ScriptedServer) -> list[tuple[str, Any]]:
    return [(asked.call, asked.json) for asked in list(server.asked) if asked.call in FINAL]


def last(server: ScriptedServer) -> tuple[str, Any]:
    (final,) = finals(server)
    return final[0], final[1].get("result")


def left(bench: WorkerContext) -> list[str]:
    return sorted(path.name for place in (bench.folder.jobs, bench.folder.spool) for path in place.iterdir())


def logs(server: ScriptedServer) -> list[tuple[int, int, bytes]]:
    received = [asked.json for asked in server.received("logs")]
    return [(one["step"], one["seq"], base64.b64decode(one["chunk"])) for one in received]


def test_the_steps_run_in_order_and_their_end_is_reported(bench: WorkerContext, server: ScriptedServer) -> None:
    a_run(bench, "null print=one", "null print=two", "null print=three").run()
    call, result = last(server)
    assert call == "complete"
    assert (result["status"], result["exit_code"]) == ("succeeded", 0)
    assert [(step["index"], step["exit_code"]) for step in result["steps"]] == [(0, 0), (1, 0), (2, 0)]
    assert all(step["started_at"] <= step["finished_at"] for step in result["steps"])
    assert "files" not in result
    assert [(step, chunk) for step, _, chunk in logs(server)] == [(0, b"one\n"), (1, b"two\n"), (2, b"three\n")]
    assert server.received("run") == [], "nothing is uploaded"
    assert [asked.json["phase"] for asked in server.received("report")] in (
        ["checking_out", "executing"],
        ["checking_out"],
    )
    assert left(bench) == []


def test_a_traced_step_reports_what_its_trace_shows(bench: WorkerContext, server: ScriptedServer) -> None:
    lines = f"null trace={RECORDED / 'hostile.strace'}", "null print=two exit=3"
    a_run(bench, *lines, trace="full").run()
    first, second = (step["trace"] for step in last(server)[1]["steps"])
    assert (first["level"], first["truncated"], first["counts"]["processes"]) == ("full", False, 14)
    assert len(first["findings"]) == MAX_STEP_FINDINGS
    assert first["findings"][0]["severity"] == "critical"
    assert (second["level"], second["bytes"], second["findings"]) == ("full", 0, [])


def test_the_traces_of_all_steps_fit_into_one_message(
    bench: WorkerContext, server: ScriptedServer, tmp_path: Path
) -> None:
    wide = "\\360\\237\\246\\200" * 250  # as strace writes a crab, which is twelve bytes of JSON
    calls = (f'open("/etc/{wide}{number}", O_WRONLY) = -1 EACCES (Permission denied)' for number in range(9))
    (tmp_path / "trace").write_bytes(trace(*calls))
    a_run(bench, f"null trace={tmp_path / 'trace'}", trace="full").run()
    [step] = last(server)[1]["steps"]
    assert len(step["trace"]["findings"]) == MAX_STEP_FINDINGS
    assert 64 * len(json.dumps(step)) + artifacts.MAX_REPORTED < 900_000, "caches and the log have the rest of 1 MiB"


def test_a_job_whose_trace_was_asked_for_goes_to_a_worker_that_can(
    bench: WorkerContext, server: ScriptedServer
) -> None:
    a_run(replace(bench, offered=frozenset({"linux"})), "null", trace="network").run()
    assert last(server) == ("release", None)


def test_the_first_that_fails_is_the_last(bench: WorkerContext, server: ScriptedServer) -> None:
    a_run(bench, "null print=one", "null exit=3", "null print=never").run()
    call, result = last(server)
    assert (call, result["status"], result["reason"], result["exit_code"]) == ("fail", "failed", "command_failed", 3)
    assert result["message"] == "Step 2 of 3 ended with code 3: null exit=3"
    assert [step["exit_code"] for step in result["steps"]] == [0, 3]
    assert [step for step, _, _ in logs(server)] == [0]


def test_a_step_that_a_signal_ends_has_no_code(bench: WorkerContext, server: ScriptedServer) -> None:
    a_run(bench, "null signal=SIGSEGV").run()
    _, result = last(server)
    assert result["message"] == "Step 1 of 1 ended by SIGSEGV: null signal=SIGSEGV"
    assert "exit_code" not in result
    assert result["steps"][0]["exit_code"] is None


@pytest.mark.parametrize(
    ("word", "reason"), [("kind=out_of_memory", "out_of_memory"), ("kind=disk_full", "disk_full"),
                         ("kind=too_many_processes", "too_many_processes")],
)  # fmt: skip
def test_a_limit_is_named_with_the_steps_until_then(
    bench: WorkerContext, server: ScriptedServer, word: str, reason: str
) -> None:
    a_run(bench, "null", f"null {word}").run()
    call, result = last(server)
    assert (call, result["reason"], len(result["steps"])) == ("fail", reason, 2)


def test_the_time_is_that_of_all_steps_together(bench: WorkerContext, server: ScriptedServer) -> None:
    a_run(bench, *["null sleep=1.2"] * 9, timeout_seconds=3).run()
    call, result = last(server)
    assert (call, result["reason"]) == ("fail", "timed_out")
    assert result["message"] == "The command ran longer than 3 s and was stopped."
    assert 2 <= len(result["steps"]) <= 3


def test_the_output_is_limited_for_all_steps_together(bench: WorkerContext, server: ScriptedServer) -> None:
    """The error that the last step prints is always there."""
    small = replace(bench, limits=replace(bench.limits, log_head_bytes=14, log_tail_bytes=12))
    noise = [f"null {' '.join(f'print={step}{line}aaaa' for line in range(3))}" for step in range(3)]
    a_run(small, *noise, "null print=error exit=3").run()
    received = {step: b"".join(chunk for one, _, chunk in logs(server) if one == step) for step in range(4)}
    assert received == {
        0: b"00aaaa\n01aaaa\n\n[7 bytes in 1 line dropped here]\n",
        1: b"\n[21 bytes in 3 lines dropped here]\n",
        2: b"\n[21 bytes in 3 lines dropped here]\n",
        3: b"error\n",
    }
    call, result = last(server)
    assert (call, result["log_truncated"]) == ("fail", {"bytes": 49, "lines": 7})


def test_progress_says_which_step_runs(bench: WorkerContext, server: ScriptedServer, open_dir: Path) -> None:
    def reported(heartbeats: list[Asked]) -> list[dict[str, Any]]:
        received = [asked.json.get("progress", {}) for asked in heartbeats]
        return [progress for progress in received if "percent" in progress]

    fifos = [open_dir / "first", open_dir / "second"]
    for fifo in fifos:
        os.mkfifo(fifo)
    with running(a_run(bench, *(f"null trace={fifo}" for fifo in fifos))):
        for count, fifo in enumerate(fifos, 1):
            # The next heartbeat is sent after the response to the one before.
            wait_until(lambda count=count: len(reported(server.received("heartbeat")[:-1])) == count)
            fifo.write_text("")
    assert reported(server.received("heartbeat")) == [
        {"percent": 0, "current_step": f"null trace={fifos[0]}", "step_index": 0},
        {"percent": 50, "current_step": f"null trace={fifos[1]}", "step_index": 1},
    ]


def test_a_cancel_stops_the_step_and_those_after_it(bench: WorkerContext, server: ScriptedServer) -> None:
    run = a_run(bench, "null print=on sleep=30", "null print=never")
    with running(run):
        wait_until(lambda: server.received("logs"))
        server.on("heartbeat", CANCEL)
    assert [call for call, _ in finals(server)] == ["acknowledge-cancel"]
    assert [step for step, _, _ in logs(server)] == [0]
    assert left(bench) == []


def test_a_second_signal_fails_what_runs(bench: WorkerContext, server: ScriptedServer) -> None:
    run = a_run(bench, "null print=on sleep=30")
    with running(run):
        wait_until(lambda: server.received("logs"))
        run.abandon()
    assert last(server)[1]["reason"] == "worker_shutdown"


def test_a_silent_step_that_runs_is_not_given_back(bench: WorkerContext, server: ScriptedServer) -> None:
    """Nothing is traced, so that its start is all that the worker learns of it."""
    run = a_run(bench, "null sleep=30")
    with running(run):
        wait_until(lambda: run._command_started)
        run.abandon()
    assert finals(server) == [("fail", finals(server)[0][1])]
    assert last(server)[1]["reason"] == "worker_shutdown"


def test_steps_run_without_a_trace(
    bench: WorkerContext, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads it."""
    specs: list[RunSpec] = []
    run = bench.engine.run

    def spy(spec: RunSpec, **given: Any) -> RunResult:
        specs.append(spec)
        return run(spec, **given)

    monkeypatch.setattr(bench.engine, "run", spy)
    a_run(bench, "null print=on", "null exit=0").run()
    assert [spec.trace for spec in specs] == [TraceLevel.NONE] * 2
    assert last(server)[1]["status"] == "succeeded"


def test_a_lost_lease_is_not_spoken_for(bench: WorkerContext, server: ScriptedServer) -> None:
    run = a_run(bench, "null print=on sleep=30", "null print=never")
    with running(run):
        wait_until(lambda: server.received("logs"))
        server.on("heartbeat", stale())
    assert finals(server) == []
    assert left(bench) == []


def test_what_the_machine_cannot_do_is_given_back(bench: WorkerContext, server: ScriptedServer) -> None:
    a_run(bench, "null unavailable").run()
    assert finals(server)[0][0] == "release"


def test_an_image_is_refused(bench: WorkerContext, server: ScriptedServer) -> None:
    a_run(bench, "null", image="tool:1").run()
    assert finals(server) == [("release", {"message": "This worker cannot offer images.", "unable": True})]


def test_a_repository_is_checked_out_and_its_directory_must_be_there(
    bench: WorkerContext, server: ScriptedServer, repository: Repository
) -> None:
    commit = repository.commit({"package/name": b"x"})
    source = claim_body()["job"]["source"] | {"git_commit": commit}
    patterns = [{"type": "file", "path_glob": "na*"}]
    a_run(bench, "null", source=source, working_directory="package", artifacts=patterns).run()
    found = last(server)[1]["files"]
    digest = hashlib.sha256(b"x").hexdigest()
    assert found == [{"type": "file", "path": "name", "size_bytes": 1, "sha256": digest}]
    server.asked.clear()
    a_run(bench, "null", source=source, working_directory="missing").run()
    assert last(server)[1]["reason"] == "checkout_failed"


@pytest.mark.parametrize("working_directory", ["package", "package/src"])
def test_a_directory_that_a_step_replaced_by_a_link_has_no_artifacts(
    bench: WorkerContext,
    server: ScriptedServer,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    working_directory: str,
) -> None:
    """The worker reads with its own rights: it would upload files of its machine."""
    outside = tmp_path / "outside"
    (outside / "src").mkdir(parents=True)
    for name in ("name", "src/name"):
        (outside / name).write_text("token of the worker")
    run = bench.engine.run

    def replace_the_directory(spec: RunSpec, **sinks: Any) -> RunResult:
        (spec.workspace / "package").rename(spec.workspace / "moved")
        (spec.workspace / "package").symlink_to(outside)
        return run(spec, **sinks)

    monkeypatch.setattr(bench.engine, "run", replace_the_directory)
    commit = repository.commit({"package/src/name": b"x"})
    source = claim_body()["job"]["source"] | {"git_commit": commit}
    patterns = [{"type": "file", "path_glob": "**"}]
    a_run(bench, "null", source=source, working_directory=working_directory, artifacts=patterns).run()
    call, result = last(server)
    assert (call, result["files"], result["files_omitted"]) == ("complete", [], 1)
    assert server.received("artifacts") == []


def test_a_workspace_that_a_step_has_closed_has_no_artifacts(
    bench: WorkerContext, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of the worker's own account can take away the permission to open it."""
    run = bench.engine.run

    def close_the_workspace(spec: RunSpec, **sinks: Any) -> RunResult:
        spec.workspace.rename(spec.workspace.with_name("closed"))
        return run(replace(spec, workspace=spec.workspace.with_name("closed")), **sinks)

    monkeypatch.setattr(bench.engine, "run", close_the_workspace)
    a_run(bench, "null", artifacts=[{"type": "file", "path_glob": "**"}]).run()
    call, result = last(server)
    assert (call, result["files"], result["files_omitted"]) == ("complete", [], 1)


def test_what_is_not_stored_is_said_on_the_job_and_in_its_log(
    bench: WorkerContext, server: ScriptedServer, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 3)
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    files = dict.fromkeys(("a:b", "b", "c", "d", "e"), b"x") | {".gitattributes": b"*.bin filter=lfs\n"}
    commit = repository.commit(files | {"z.bin": pointer})
    source = claim_body()["job"]["source"] | {"git_commit": commit}
    server.on("artifacts", problem(400, "invalid", detail="name: Invalid."), problem(402, "storage_quota_exceeded"))
    a_run(
        bench,
        "null print=x",
        "null memory-kills=2 print=y",
        source=source,
        artifacts=[{"type": "f", "path_glob": "[a-e]*"}],
    ).run()
    result = last(server)[1]
    assert (len(result["files"]), result["files_omitted"]) == (2, 3)
    assert result["files_omitted_reasons"] == {"too_many_files": 2, "name_refused": 1}
    first, second = (b"".join(chunk for one, _, chunk in logs(server) if one == step).decode() for step in (0, 1))
    assert first == "[not fetched: 1 file is a Git LFS pointer: z.bin]\nx\n"
    left_out, name, stopped = second.splitlines()[2:4], second.splitlines()[4], second.splitlines()[5]
    assert second.startswith("y\n[memory: 2 kills by the kernel at the limit of 2,147,483,648 bytes]\n")
    assert left_out == [
        "[artifacts: 2 files left out, a job has at most 256 files]",
        "[artifacts: 1 file left out, the server does not accept the name]",
    ]
    assert name.startswith("[artifacts: not stored: ")
    assert name.endswith(": 400 invalid: name: Invalid.]")
    assert stopped.endswith(f"{result['files'][0]['path']}: 402 storage_quota_exceeded]")


def test_the_result_stays_on_disk_until_was_taken_and_the_next_life_tells_it(
    bench: WorkerContext, server: ScriptedServer
) -> None:
    server.on("fail", hang_up)
    run = a_run(bench, "null", "null exit=3")
    with running(run):
        wait_until(lambda: server.received("fail"))
        run.abandon()
    assert left(bench) == ["rtj_01jjob.1.result"]
    (entry,) = bench.spool.pending()
    assert entry.payload == b""
    server.asked.clear()
    server.on("fail", Answer())
    bench.delivery.deliver(entry, over=threading.Event())
    assert last(server)[1]["exit_code"] == 3
    assert left(bench) == []
    assert LEASE_ID not in repr(entry)


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"steps": []}, "steps"), ({"steps": [1]}, "steps"), ({"environment": {"A=B": ""}}, "environment"),
        ({"environment": {"A": 1}}, "environment"), ({"artifacts": ["x"]}, "artifacts"), ({"image": 1}, "image"),
        ({"timeout_seconds": 0}, "timeout_seconds"), ({"least_isolation": "new"}, "least_isolation"),
    ],
)  # fmt: skip
def test_a_wrong_claim_is_named_by_its_member(changes: dict[str, Any], member: str) -> None:
    with pytest.raises(ProtocolError, match=member):
        wire.lease(steps_body("x", **changes))


def test_a_type_of_the_future_is_given_back() -> None:
    body = steps_body("x")
    body["job"]["job_type"] = "export"
    with pytest.raises(ProtocolError, match="job_type"):
        wire.lease(body)


# --- what is found at the end -----------------------------------------------------------------------------------------

FITS = {
    "*.xml": {"a.xml"},
    "**/*.xml": {"a.xml", "out/b.xml", "out/deep/c.xml"},
    "out/*.xml": {"out/b.xml"},
    "out": {"out/b.xml", "out/deep/c.xml", "out/d.txt"},
    "out/": {"out/b.xml", "out/deep/c.xml", "out/d.txt"},
    "out/**": {"out/b.xml", "out/deep/c.xml", "out/d.txt"},
    "**/deep": {"out/deep/c.xml"},
    "./out/[bd].*": {"out/b.xml", "out/d.txt"},
    "?.xml": {"a.xml"},
    "missing/**": set(),
    "link/*": set(),
    "**": {"a.xml", "out/b.xml", "out/deep/c.xml", "out/d.txt"},
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "job"
    for name in ("a.xml", "out/b.xml", "out/deep/c.xml", "out/d.txt", ".git/config"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (root / "link").symlink_to(root / "out")
    (root / "secret.xml").symlink_to("/etc/passwd")
    return root


@pytest.mark.parametrize("pattern", FITS)
def test_a_pattern_fits_as_people_expect_and_follows_no_link(tree: Path, pattern: str) -> None:
    found = artifacts.find_artifacts(tree, [PatternPayload("file", pattern)])
    assert {file["path"] for file in found["files"]} == FITS[pattern]
    assert found["files_omitted"] == 0


def test_a_file_is_named_once_by_the_first_pattern_that_fits(tree: Path) -> None:
    found = artifacts.find_artifacts(tree, [PatternPayload("junit", "a.xml"), PatternPayload("any", "*.xml")])
    assert [(file["type"], file["path"]) for file in found["files"]] == [("junit", "a.xml")]


def test_a_pipe_and_a_name_that_is_no_text_do_no_harm(tree: Path) -> None:
    os.mkfifo(tree / "pipe.xml")
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff.xml")).write_bytes(b"x")
    found = artifacts.find_artifacts(tree, [PatternPayload("file", "*.xml")])
    assert [file["path"] for file in found["files"]] == ["a.xml", "\ufffd.xml"]


@pytest.mark.timeout(60)
def test_what_became_a_pipe_after_it_was_listed_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert artifacts._Search([])._digest(str(tmp_path / "pipe")) == (None, 0)


def test_too_many_are_counted_and_not_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 2)
    found = artifacts.find_artifacts(tree, [PatternPayload("file", "**")])
    assert (len(found["files"]), found["files_omitted"]) == (2, 2)
    monkeypatch.setattr(artifacts, "MAX_BYTES", 0)
    assert artifacts.find_artifacts(tree, [PatternPayload("file", "**")]) == {"files": [], "files_omitted": 4}
    monkeypatch.setattr(artifacts, "MAX_ENTRIES", 0)
    assert artifacts.find_artifacts(tree, [PatternPayload("file", "**")]) == {"files": [], "files_omitted": 1}


def test_directories_count_as_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"d{number}").mkdir()
    everything = [PatternPayload("file", "**")]
    assert artifacts.find_artifacts(tmp_path, everything) == {"files": [], "files_omitted": 0}
    monkeypatch.setattr(artifacts, "MAX_ENTRIES", 19)
    assert artifacts.find_artifacts(tmp_path, everything) == {"files": [], "files_omitted": 1}
    monkeypatch.setattr(artifacts, "MAX_ENTRIES", 100)
    monkeypatch.setattr(artifacts, "MAX_PENDING", 10)
    assert artifacts.find_artifacts(tmp_path, everything) == {"files": [], "files_omitted": 1}


def test_a_large_directory_is_not_kept_as_a_whole(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job can make millions of names, which need no inodes of their own."""
    with os.scandir(tree) as listed:
        entry = next(found for found in listed if found.is_file(follow_symlinks=False))
    read = []

    def many(_: str) -> contextlib.nullcontext[Iterator[os.DirEntry[str]]]:
        return contextlib.nullcontext(entry for number in range(1_000) if not read.append(number))  # type: ignore[func-returns-value]

    monkeypatch.setattr(artifacts.os, "scandir", many)
    monkeypatch.setattr(artifacts, "MAX_ENTRIES", 5)
    assert artifacts.find_artifacts(tree, [PatternPayload("file", "none")]) == {"files": [], "files_omitted": 1}
    assert len(read) == 6


def test_the_deepest_tree_ends_somewhere(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    try:
        assert artifacts.find_artifacts(tmp_path, [PatternPayload("file", "**/x")]) == {"files": [], "files_omitted": 0}
    finally:  # deeper than Python's own removal can go
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
