"""One job from its acknowledgement to its end, with the null engine, a real checkout and a scripted server."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.benches import STORED, a_bench, a_run, running
from tests.workers.agent.conftest import LEASE_ID, TOKEN
from tests.workers.agent.repositories import Repository
from tests.workers.agent.scripted import Answer, ScriptedServer, hang_up, problem, stale, wait_until
from tests.workers.traced import RECORDED
from workers.agent import job_runner
from workers.agent.checkout import Checkout
from workers.agent.context import WorkerContext
from workers.agent.http.client import OrchestratorClient
from workers.agent.readiness import OwnFailures
from workers.engines.contract import RunResult
from workers.engines.null import FLAG, NullEngine
from workers.report.trace_reader import ReaderProcess

CANCEL = Answer(200, {"cancel_requested": True, "cancel_reason": "requested", "cancel_deadline_seconds": 30})
FINAL = ("complete", "fail", "release", "acknowledge-cancel")


@pytest.fixture
def bench(
    server: ScriptedServer, client: OrchestratorClient, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerContext]:
    monkeypatch.setenv(FLAG, "1")
    with a_bench(server, client, open_dir, NullEngine()) as made:
        yield made


@pytest.fixture
def commit(repository: Repository) -> str:
    return repository.commit({"package/name": b"x"}, links={"link": "package"})


def finals(server: ScriptedServer) -> list[tuple[str, Any]]:
    return [(asked.call, asked.json) for asked in list(server.asked) if asked.call in FINAL]


def log_of(server: ScriptedServer) -> bytes:
    return b"".join(base64.b64decode(asked.json["chunk"]) for asked in server.received("logs"))


def left(bench: WorkerContext) -> list[str]:
    """Return what is still on the disk."""
    return sorted(path.name for place in (bench.folder.jobs, bench.folder.spool) for path in place.iterdir())


def test_a_job_goes_from_its_lease_to_its_run(bench: WorkerContext, server: ScriptedServer, commit: str) -> None:
    a_run(bench, commit, "print=hello", "exit=3").run()
    calls = [call for call in server.calls if call not in {"heartbeat", "logs"}]
    assert calls == [
        "acknowledge",
        "report",
        *(["report"] if calls.count("report") == 3 else []),
        "report",
        "run",
        "complete",
    ]
    assert log_of(server) == b"hello\n"
    ((_, complete),) = finals(server)
    assert complete["result"]["ingest_run_id"] == "run_1"
    assert complete["result"]["exit_code"] == 3, "a command that fails is a result"
    run = server.received("run")[0].json
    assert run["schema_version"] == "run.v1"
    assert (
        run["metadata"]
        | {
            "org_slug": "acme",
            "project_slug": "web",
            "repo_url": "https://github.com/acme/web.git",
            "git_commit": commit,
            "command": ["null", "print=hello", "exit=3"],
            "trigger_kind": "manual",
            "trigger_actor": "ann",
            "worker_id": "wrk_01jworker",
            "job_id": "rtj_01jjob",
        }
        == run["metadata"]
    )
    assert run["outcome"]["exit_code"] == 3
    assert left(bench) == []


def test_the_server_hears_of_every_phase_in_order(
    bench: WorkerContext, server: ScriptedServer, commit: str, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "START_SECONDS", 60)  # the phase is reported once: by the first output
    os.mkfifo(fifo := open_dir / "fifo")
    with running(a_run(bench, commit, "print=hello", f"trace={fifo}")):
        # The next heartbeat is sent after the response to the one before.
        wait_until(lambda: any(asked.json.get("phase") == "executing" for asked in server.received("heartbeat")[:-1]))
        fifo.write_text("")
    phases = [
        asked.json["phase"] for asked in server.asked if asked.call in {"report", "heartbeat"} and "phase" in asked.json
    ]
    assert phases == ["checking_out", "executing", "uploading"]


def test_output_is_sent_while_the_command_runs(bench: WorkerContext, server: ScriptedServer, commit: str) -> None:
    with running(a_run(bench, commit, "print=early", "sleep=30")):
        wait_until(lambda: log_of(server) == b"early\n")
        assert not finals(server)
        server.on("heartbeat", CANCEL)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["kind=not_found"], "command_not_found"),
        (["kind=out_of_memory"], "out_of_memory"),
        (["kind=too_many_processes"], "too_many_processes"),
        (["kind=disk_full"], "disk_full"),
        (["kind=worker_disk_full"], "worker_disk_full"),
        (["sleep=30"], "timed_out"),
        (["sandbox-failed"], "sandbox_apply_failed"),
        (["nonsense"], "worker_error"),
    ],
)
def test_an_end_without_a_result_has_its_reason_and_words(
    bench: WorkerContext, server: ScriptedServer, commit: str, words: list[str], reason: str
) -> None:
    a_run(bench, commit, *words, execution__timeout_seconds=0.5 if reason == "timed_out" else 60).run()
    ((call, body),) = finals(server)
    assert (call, body["result"]["reason"]) == ("fail", reason)
    assert len(body["result"]["message"]) > 10
    assert not server.received("run")
    assert left(bench) == []


def test_a_command_that_a_signal_ended_is_a_result(bench: WorkerContext, server: ScriptedServer, commit: str) -> None:
    a_run(bench, commit, "signal=SIGSEGV").run()
    ((call, body),) = finals(server)
    assert call == "complete"
    assert "exit_code" not in body["result"]
    assert server.received("run")[0].json["outcome"]["signal"] == "SIGSEGV"


def test_a_commit_that_is_not_there_fails_the_checkout(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    a_run(bench, "b" * 40, "exit=0").run()
    ((call, body),) = finals(server)
    assert (call, body["result"]["reason"]) == ("fail", "checkout_failed")
    assert "does not have this commit" in body["result"]["message"]
    assert left(bench) == []


@pytest.mark.parametrize("directory", ["link", "none", "../.."])
def test_a_working_directory_that_leaves_the_repository_fails_the_checkout(
    bench: WorkerContext, server: ScriptedServer, commit: str, directory: str
) -> None:
    a_run(bench, commit, "exit=0", execution__working_directory=directory).run()
    ((call, body),) = finals(server)
    assert (call, body["result"]["reason"]) == ("fail", "checkout_failed")


@pytest.mark.parametrize(
    "changes",
    [
        {"execution__least_isolation": "restricted"},
        {"execution__least_isolation": "namespaces"},
        {"execution__allow_network": True},
        {"execution__allow_exec": False},
    ],
)
def test_what_this_machine_cannot_hold_goes_to_another_before_anything_of_it_is_here(
    bench: WorkerContext, server: ScriptedServer, commit: str, changes: dict[str, Any]
) -> None:
    a_run(replace(bench, offered=frozenset({"linux", "ptrace"})), commit, "exit=0", **changes).run()
    ((call, body),) = finals(server)
    assert (call, body["unable"]) == ("release", True)
    assert body["message"].startswith("This worker cannot offer ")
    assert not server.received("report")


def test_network_and_restraint_that_are_offered_are_used(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    orders = []

    class Watched(NullEngine):
        def run(self, spec: Any, **sinks: Any) -> RunResult:
            orders.append(spec)
            return super().run(spec, **sinks)

    changed = replace(bench, engine=Watched())
    a_run(changed, commit, "exit=0", execution__allow_network=True, execution__egress=["packages.example.org"]).run()
    a_run(changed, commit, "exit=0", execution__allow_exec=False, execution__working_directory="package").run()
    first, second = orders
    assert first.egress.allow == ("packages.example.org",)
    assert first.allow_exec
    assert second.egress is None, "no network unless the job allows it"
    assert not second.allow_exec
    assert second.working_directory == "package"
    assert second.environment == {}


def test_an_engine_that_turns_out_too_weak_gives_the_job_back(
    bench: WorkerContext, server: ScriptedServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "START_SECONDS", 60)
    a_run(bench, commit, "unavailable").run()
    ((call, body),) = finals(server)
    assert (call, body) == ("release", {"message": "requested by the command", "unable": True})
    phases = [asked.json["phase"] for asked in server.asked if asked.json.get("phase")]
    assert "executing" not in phases, "which would have made it too late"


def test_what_can_no_longer_be_given_back_fails_by_name(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    server.on("release", problem(409, "illegal_move"))
    a_run(bench, commit, "unavailable").run()
    assert [(call, body.get("result", {}).get("reason")) for call, body in finals(server)] == [
        ("release", None),
        ("fail", "sandbox_unavailable"),
    ]


@pytest.mark.parametrize("words", [["print=x", "sleep=30"], ["print=x", "ignore-term", "sleep=30"]])
def test_a_canceled_command_is_dead_and_its_log_kept_before_that_is_reported(
    bench: WorkerContext, server: ScriptedServer, commit: str, words: list[str]
) -> None:
    with running(a_run(bench, commit, *words)):
        wait_until(lambda: server.received("logs"))
        server.on("heartbeat", CANCEL)
    ((call, _),) = finals(server)
    assert call == "acknowledge-cancel"
    assert log_of(server) == b"x\n"
    assert not server.received("run")
    assert left(bench) == []


def test_a_cancel_whose_deadline_is_near_leaves_no_time_for_manners(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    hurried = Answer(200, CANCEL.body | {"cancel_deadline_seconds": 1})
    with running(a_run(replace(bench, engine=Patient()), commit, "print=x", "ignore-term", "sleep=30")):
        wait_until(lambda: server.received("logs"))
        server.on("heartbeat", hurried)
    assert [call for call, _ in finals(server)] == ["acknowledge-cancel"]


def test_a_command_that_ends_well_after_it_was_asked_to_stop_is_canceled_all_the_same(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    class Polite(NullEngine):
        def run(self, spec: Any, *, output: Any, stop: Any, **_: Any) -> RunResult:
            output(b"x")
            assert stop.requested.wait(10)
            return RunResult(kind="exited", exit_code=0)

    server.on("heartbeat", CANCEL)
    a_run(replace(bench, engine=Polite()), commit).run()
    assert [call for call, _ in finals(server)] == ["acknowledge-cancel"]
    assert not server.received("run")


def test_a_cancel_before_the_command_began_keeps_it_from_beginning(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    run = a_run(replace(bench, engine=(engine := Unwanted())), commit, "print=never")
    run.canceled("requested", 30.0)
    run.run()
    assert not engine.asked
    assert [call for call, _ in finals(server)] == ["acknowledge-cancel"]
    assert log_of(server) == b""


def test_a_cancel_after_the_checkout_keeps_the_command_from_beginning(
    bench: WorkerContext, server: ScriptedServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(replace(bench, engine=(engine := Unwanted())), commit, "print=never")
    fetch = Checkout.fetch

    def then_cancel(checkout: Checkout, *arguments: Any, **options: Any) -> None:
        fetch(checkout, *arguments, **options)
        run.canceled("requested", 30.0)

    monkeypatch.setattr(Checkout, "fetch", then_cancel)
    run.run()
    assert not engine.asked
    assert [call for call, _ in finals(server)] == ["acknowledge-cancel"]


def test_a_cancel_while_the_run_is_uploaded_is_left_to_the_server(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    server.on("run", replace(STORED, wait=0.4))
    run = a_run(bench, commit, "exit=0", heartbeat_interval_seconds=30)
    with running(run):
        wait_until(lambda: server.received("run"))
        server.on("heartbeat", CANCEL)
        run.canceled("requested", 30.0)
    assert [call for call, _ in finals(server)] == ["complete"]


def test_a_stale_heartbeat_stops_the_job_and_nothing_more_is_sent(
    bench: WorkerContext, server: ScriptedServer, commit: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(a_run(replace(bench, engine=Patient()), commit, "print=x", "ignore-term", "sleep=30")) as thread:
        wait_until(lambda: server.received("logs"))
        server.on("heartbeat", stale("lease_revoked"))
        thread.join(30)
    stale_at = next(place for place, asked in enumerate(server.asked) if asked is server.received("heartbeat")[-1])
    assert server.asked[stale_at + 1 :] == []
    assert "lease lost: stopping the job job=rtj_01jjob reason='lease_revoked'" in caplog.text
    assert left(bench) == []


@pytest.mark.parametrize("call", ["acknowledge", "report"])
def test_a_stale_response_before_the_command_ends_the_job_without_another_call(
    bench: WorkerContext, server: ScriptedServer, commit: str, call: str
) -> None:
    server.on(call, stale())
    a_run(bench, commit, "print=x", "exit=0", heartbeat_interval_seconds=30).run()
    assert server.calls[-1] == call
    assert left(bench) == []


def test_a_stale_response_to_the_first_output_ends_the_job_without_a_final_message(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    """The heartbeat that the output wakes may come after it."""
    server.on("logs", stale())
    a_run(bench, commit, "print=x", "sleep=30", heartbeat_interval_seconds=30).run()
    assert finals(server) == []
    assert len(server.received("logs")) == 1
    assert left(bench) == []


@pytest.mark.parametrize(("call", "before", "then"), [("logs", [Answer()], "sleep=1"), ("complete", [], "exit=0")])
def test_a_stale_response_after_the_first_output_ends_the_job_without_another_call(
    bench: WorkerContext,
    server: ScriptedServer,
    commit: str,
    open_dir: Path,
    call: str,
    before: list[Answer],
    then: str,
) -> None:
    os.mkfifo(fifo := open_dir / "fifo")
    server.on(call, *before, stale())
    run = a_run(bench, commit, "print=x", f"trace={fifo}", "print=y", then, heartbeat_interval_seconds=30)
    with running(run):
        # The first output wakes the heartbeat, which may come after the call otherwise. The next is due in 24 s.
        wait_until(lambda: server.received("logs") and server.received("heartbeat"))
        fifo.write_text("")
    assert server.calls[-1] == call
    assert left(bench) == []


@pytest.mark.parametrize("call", ["heartbeat", "report"])
def test_a_result_whose_lease_is_lost_while_it_is_uploaded_is_dropped(
    bench: WorkerContext, server: ScriptedServer, commit: str, call: str
) -> None:
    server.on("run", Answer(503))
    server.on("report", Answer(), Answer(), stale() if call == "report" else Answer())
    with running(a_run(bench, commit, "exit=0")):
        wait_until(lambda: server.received("run") or (call == "report" and len(server.received("report")) == 3))
        server.on("heartbeat", stale())
    assert finals(server) == []
    assert left(bench) == []


def test_a_silent_server_ends_the_job_before_the_lease_ends(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    server.on("heartbeat", Answer(), hang_up)
    run = a_run(bench, commit, "print=x", "sleep=30", lease_ttl_seconds=20)
    with running(run) as thread:
        wait_until(lambda: server.received("heartbeat"))
        for call in ("logs", "fail", "acknowledge-cancel"):
            server.on(call, hang_up)
        thread.join(30)
        renewed = server.received("heartbeat")[0].at
        assert time.monotonic() - renewed < 20.0, "dead before the server may give the job to another"
    assert finals(server) == []
    assert left(bench) == []


def test_a_lost_answer_to_the_acknowledgement_is_asked_for_again(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    server.on("acknowledge", hang_up, Answer())
    a_run(bench, commit, "exit=0").run()
    assert [call for call, _ in finals(server)] == ["complete"]


def test_a_server_that_is_away_for_a_moment_costs_nothing(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    for call in ("report", "logs", "heartbeat", "run", "complete"):
        server.on(call, Answer(503), STORED if call == "run" else Answer())
    a_run(bench, commit, "print=x", "sleep=0.5").run()
    assert {call for call, _ in finals(server)} == {"complete"}
    assert b"x\n" in log_of(server)


def test_an_abandoned_command_fails_as_the_worker_s_doing(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    run = a_run(bench, commit, "print=x", "sleep=30")
    with running(run):
        wait_until(lambda: server.received("logs"))
        run.abandon()
    ((call, body),) = finals(server)
    assert (call, body["result"]["reason"]) == ("fail", "worker_shutdown")


def test_an_abandoned_job_that_has_not_begun_is_given_back(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    run = a_run(bench, commit, "print=never")
    run.abandon()
    run.run()
    ((call, body),) = finals(server)
    assert (call, body["unable"]) == ("release", False)
    assert log_of(server) == b""


def test_an_abandoned_upload_stays_in_the_spool_for_the_next_life(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    server.on("run", Answer(503))
    run = a_run(bench, commit, "exit=0")
    with running(run):
        wait_until(lambda: server.received("run"))
        run.abandon()
    assert finals(server) == []
    (entry,) = bench.spool.pending()
    assert entry.payload == server.received("run")[0].body


def test_a_full_disk_is_named_and_not_the_job_s_fault(
    bench: WorkerContext, server: ScriptedServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(entry: object) -> None:
        raise OSError(28, "No space left on device", "/secret/place")

    monkeypatch.setattr(bench.spool, "put", full)
    a_run(bench, commit, "exit=0").run()
    ((_, body),) = finals(server)
    assert body["result"] == {"status": "failed", "reason": "worker_disk_full", "message": "The worker's disk is full."}


@pytest.mark.parametrize("in_volume", [True, False], ids=["volume", "machine"])
def test_a_repository_that_fills_the_slot_s_volume_is_too_large(
    bench: WorkerContext,
    server: ScriptedServer,
    commit: str,
    monkeypatch: pytest.MonkeyPatch,
    in_volume: bool,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    volume = bench.folder.jobs / "slot-0"
    volume.mkdir()
    monkeypatch.setattr(bench.engine, "directory", lambda *_: volume if in_volume else bench.folder.jobs)
    monkeypatch.setattr(Checkout, "fetch", full)
    a_run(bench, commit, "exit=0").run()
    ((call, body),) = finals(server)
    if in_volume:
        assert (call, body["result"]["reason"]) == ("fail", "checkout_failed")
    else:
        assert (call, body) == ("release", {"message": "The worker's disk is full.", "unable": True})
    assert list(volume.iterdir()) == []


def test_a_worker_pauses_after_three_failures_in_a_row_of_its_own(bench: WorkerContext, commit: str) -> None:
    now = 0.0
    bench = replace(bench, failures=OwnFailures(lambda: now))
    own, of_the_job = ("sandbox-failed", "kind=worker_disk_full", "nonsense"), ("kind=timeout", "exit=0")
    for words in (*own[:2], of_the_job[0], *own[:2], of_the_job[1], *own[:2]):
        a_run(bench, commit, words).run()
        assert bench.unready() is None, words
    a_run(bench, commit, own[2]).run()
    unready = bench.unready()
    assert unready is not None
    assert unready.reason == "repeated_failures"
    last = "The worker failed: ValueError."
    assert unready.message == f"3 jobs in a row failed for reasons of this worker, the last one: {last}"
    now = 300.0
    assert bench.unready() is None
    a_run(bench, commit, own[0]).run()
    now += 599
    assert bench.unready() is not None, "each further failure doubles the pause"
    now += 1
    assert bench.unready() is None
    a_run(bench, commit, "exit=0").run()
    a_run(bench, commit, own[0]).run()
    assert bench.unready() is None


def test_a_failure_of_the_worker_tells_its_kind_and_not_its_text(
    bench: WorkerContext, server: ScriptedServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("/secret/place")

    monkeypatch.setattr(bench.folder, "make_workspace", broken)
    a_run(bench, commit, "exit=0").run()
    ((_, body),) = finals(server)
    assert body["result"]["reason"] == "worker_error"
    assert body["result"]["message"] == "The worker failed: RuntimeError."


RUN = {
    "schema_version": "run.v1",
    "metadata": {"job_id": "rtj_01jfirst", "worker_id": "wrk_01jother", "org_slug": "acme", "retry_of_job_id": None},
    "outcome": {"kind": "exited", "exit_code": 5},
    "counts": {"files_accessed": 3},
}


@pytest.mark.parametrize("message", [b"T", b"E"], ids=["while the command runs", "at its end"])
def test_the_death_of_the_process_that_reads_the_trace_fails_the_job_and_not_the_next_one(
    bench: WorkerContext, server: ScriptedServer, commit: str, monkeypatch: pytest.MonkeyPatch, message: bytes
) -> None:
    send = ReaderProcess.send

    def die(process: ReaderProcess, kind: bytes, data: bytes) -> None:
        if kind == message:
            os.kill(process.pid, signal.SIGKILL)
            process._process.wait()
        send(process, kind, data)

    trace = f"trace={RECORDED / 'git.strace'}"
    with monkeypatch.context() as patched:
        patched.setattr(ReaderProcess, "send", die)
        a_run(bench, commit, trace, "exit=0").run()
    ((call, body),) = finals(server)
    assert (call, body["result"]["reason"]) == ("fail", "worker_error")
    assert body["result"]["message"] == "The process that read the trace of the command has failed."
    assert left(bench) == []
    a_run(bench, commit, trace, "exit=0").run()
    assert [call for call, _ in finals(server)] == ["fail", "complete"]


def test_the_run_says_what_was_traced(bench: WorkerContext, server: ScriptedServer, commit: str) -> None:
    trace = f"trace={RECORDED / 'git.strace'}"
    for level in ("none", "network", "full"):
        a_run(bench, commit, trace, "network=example.org:refused", "exit=0", execution__trace=level).run()
        run = server.received("run")[-1].json
        assert run["trace"]["level"] == level
        assert bool(run["counts"]["trace_lines"]) == (level != "none")
        assert run["outcome"] == {"kind": "exited", "exit_code": 0, "signal": None, "cause": None}
        assert [item["verdict"] for item in run["network_attempts"]["items"] if item["kind"] == "proxied"] == [
            "refused"
        ]


def test_a_run_that_could_not_be_uploaded_is_sent_again_and_nothing_is_executed(
    bench: WorkerContext, server: ScriptedServer, commit: str
) -> None:
    a_run(bench, commit, "print=never", unsent_run=RUN, retry_of="rtj_01jfirst").run()
    assert [call for call in server.calls if call != "heartbeat"] == ["acknowledge", "report", "run", "complete"]
    sent = server.received("run")[0].json
    assert sent["metadata"] == {
        "job_id": "rtj_01jjob",
        "worker_id": "wrk_01jworker",
        "org_slug": "acme",
        "retry_of_job_id": "rtj_01jfirst",
    }
    assert sent["outcome"] == RUN["outcome"]
    assert server.received("complete")[0].json["result"]["exit_code"] == 5
    assert left(bench) == []


def test_what_is_no_run_is_not_sent_again(bench: WorkerContext, server: ScriptedServer, commit: str) -> None:
    a_run(bench, commit, unsent_run={"metadata": []}).run()
    assert [(call, body["result"]["reason"]) for call, body in finals(server)] == [("fail", "upload_rejected")]
    assert not server.received("run")


class Patient(NullEngine):
    """An engine whose grace is longer than `running` waits: only an immediate stop ends a command in time."""

    def run(self, spec: Any, **sinks: Any) -> RunResult:
        return super().run(replace(spec, grace_seconds=60), **sinks)


class Unwanted(NullEngine):
    """An engine that must not run anything."""

    asked = False

    def run(self, *_: Any, **__: Any) -> RunResult:
        self.asked = True
        raise AssertionError


def test_a_log_that_was_cut_has_its_end_and_says_so(bench: WorkerContext, server: ScriptedServer, commit: str) -> None:
    small = replace(bench, limits=replace(bench.limits, log_head_bytes=4, log_tail_bytes=4))
    a_run(small, commit, *(f"print={number}" for number in range(9))).run()
    assert log_of(server) == b"0\n1\n\n[10 bytes in 5 lines dropped here]\n7\n8\n"
    ((_, body),) = finals(server)
    assert body["result"]["log_truncated"] == {"bytes": 10, "lines": 5}
    assert server.received("run")[0].json["resources"]["output"] == {"bytes": 18, "truncated": True}
    server.asked.clear()
    a_run(small, commit, *(f"print={number}" for number in range(9)), "kind=out_of_memory").run()
    ((call, body),) = finals(server)
    assert (call, body["result"]["log_truncated"]) == ("fail", {"bytes": 10, "lines": 5})


def test_nothing_that_opens_a_door_is_in_the_log_or_on_the_disk(
    bench: WorkerContext, server: ScriptedServer, commit: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.on("heartbeat", hang_up, Answer(500), stale())
    a_run(bench, commit, "print=x", "sleep=2").run()
    server.on("acknowledge", problem(400, "invalid", detail=LEASE_ID))
    a_run(bench, commit).run()
    assert LEASE_ID not in caplog.text
    assert TOKEN not in caplog.text
    assert LEASE_ID not in json.dumps([asked.json for asked in server.asked])
