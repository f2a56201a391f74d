"""`manage.py runworker` as a real process with real signals. Its database setting cannot connect, to no effect."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.management.commands import runworker
from tests.workers.agent.benches import STORED
from tests.workers.agent.conftest import LEASE_ID, TOKEN, claim_body
from tests.workers.agent.repositories import Repository
from tests.workers.agent.scripted import Answer, ScriptedServer, hang, wait_until
from tests.workers.agent.worker_process import ROOT, WorkerProcess

FAULTY = Path(__file__).with_name("faulty_worker.py")
FINAL = ("complete", "fail", "release", "acknowledge-cancel")

Start = Callable[..., WorkerProcess]


@pytest.fixture
def database() -> Iterator[socket.socket]:
    """A place that the settings take for the database: whoever connects to it is found out."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


@pytest.fixture
def start(
    server: ScriptedServer, token_file: Path, open_dir: Path, tmp_path: Path, database: socket.socket
) -> Iterator[Start]:
    """Start a worker against the scripted server; the null engine unless the test names another. None outlives the test."""
    started: list[WorkerProcess] = []
    environment = {
        "STATE_DIR": str(tmp_path / "state"),
        "DATABASE_URL": f"postgres://nobody@127.0.0.1:{database.getsockname()[1]}/nothing",
        "GIT_MIRRORS": f'{{"https://github.com/": "{open_dir}/mirrors/"}}',
    }

    def begin(*arguments: str, program: Path = ROOT / "manage.py", **more: str) -> WorkerProcess:
        given = ["--server", server.url, "--token-file", str(token_file), "--work-dir", str(open_dir / "work")]
        engine = [] if "--engine" in arguments else ["--engine", "null"]
        log = tmp_path / f"log-{len(started)}"
        worker = WorkerProcess(environment | more, log, *given, *engine, *arguments, program=program)
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.end_anyway()


@pytest.fixture
def job(repository: Repository, server: ScriptedServer) -> Callable[..., Answer]:
    commit = repository.commit({"name": b"x"})

    def claimable(*words: str) -> Answer:
        body = claim_body(
            source__git_commit=commit,
            execution__command=["null", *words],
            heartbeat_interval_seconds=0.3,
        )
        body["job"]["execution"]["least_isolation"] = "none"
        answer = Answer(201, body)
        server.on("leases", answer, Answer(204, wait=0.1))
        server.on("run", STORED)
        return answer

    return claimable


def finals(server: ScriptedServer) -> list[str]:
    return [call for call in server.calls if call in FINAL]


def test_a_worker_works_without_a_database(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], database: socket.socket
) -> None:
    job("print=hello", "exit=0")
    worker = start("--once")
    assert worker.end() == 0, worker.log
    assert finals(server) == ["complete"]
    with pytest.raises(BlockingIOError):
        database.accept()
    assert "Traceback" not in worker.log
    assert LEASE_ID not in worker.log
    assert TOKEN not in worker.log


def test_once_without_work_ends_well(start: Start, server: ScriptedServer) -> None:
    assert start("--once").end() == 0
    assert server.calls == ["leases"]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--server", "http://orchestrator.example"], {}, "must be https, or http to this machine"),
        (["--token-file", "/nonexistent"], {}, "cannot read the token file"),
        ([], {"RUNTIME_ORCHESTRATOR_TEST": "0"}, "the null engine is for tests only"),
        (["--capacity", "0"], {}, "invalid choice"),
        (["--engine", "none"], {}, "invalid choice"),
    ],
)
@pytest.mark.timeout(60)  # a worker that is not refused does not end
def test_what_cannot_work_is_shown_in_one_line(
    server: ScriptedServer,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environment: dict[str, str],
    words: str,
) -> None:
    for name, value in ({"RUNTIME_ORCHESTRATOR_TEST": "1"} | environment).items():
        monkeypatch.setenv(name, value)
    given = ["--server", server.url, "--token-file", str(token_file), "--work-dir", str(tmp_path), "--engine", "null"]
    with pytest.raises(SystemExit) as ended:
        runworker.Command().run_from_argv(["manage.py", "runworker", *given, *arguments])
    assert ended.value.code not in {None, 0}
    assert words in capsys.readouterr().err
    assert server.asked == []


def test_a_process_that_cannot_work_ends_with_one_line(start: Start, server: ScriptedServer) -> None:
    worker = start("--work-dir", "/proc/nowhere")
    assert worker.end() != 0
    assert "--work-dir" in worker.log
    assert "Traceback" not in worker.log
    assert server.asked == []


def test_a_second_worker_in_the_same_folder_is_refused(start: Start, server: ScriptedServer) -> None:
    start()
    wait_until(lambda: server.received("leases"))
    second = start()
    assert second.end() == 1
    assert "another worker uses" in second.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_what_runs_and_claims_no_more(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    job("print=x", f"trace={fifo}", "exit=0")
    worker = start()
    wait_until(lambda: server.received("logs"))
    worker.signal(number)
    wait_until(lambda: "draining: no more claims" in worker.log)
    assert finals(server) == []
    claims = len(server.received("leases"))
    fifo.write_text("")
    assert worker.end() == 0
    assert finals(server) == ["complete"]
    assert len(server.received("leases")) <= claims


def test_an_idle_worker_ends_soon_after_the_first_signal(start: Start, server: ScriptedServer) -> None:
    server.on("leases", Answer(204, wait=0.5))
    worker = start()
    wait_until(lambda: server.received("leases"))
    worker.signal(signal.SIGTERM)
    assert worker.end(60) == 0


def test_the_second_signal_stops_the_job_and_says_so(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], open_dir: Path
) -> None:
    job("print=x", "ignore-term", "sleep=60")
    worker = start()
    wait_until(lambda: server.received("logs"))
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "draining: no more claims" in worker.log)
    assert finals(server) == []
    worker.signal(signal.SIGTERM)
    worker.end()
    assert finals(server) == ["fail"]
    assert server.received("fail")[0].json["result"]["reason"] == "worker_shutdown"
    assert list((open_dir / "work" / "jobs").iterdir()) == []


def test_the_second_signal_ends_a_worker_whose_server_is_silent(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], tmp_path: Path
) -> None:
    job("print=x", "sleep=60")
    (faults := tmp_path / "faults").write_text("drain")
    worker = start(program=FAULTY, FAULT_FILE=str(faults), SHUTDOWN_SECONDS="2")  # of ten
    wait_until(lambda: server.received("logs"))
    server.on("fail", hang)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "draining: no more claims" in worker.log)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: server.received("fail"))  # it has tried; the two seconds begin after that
    faults.write_text("")
    assert worker.end(25) == 0


def test_what_was_spooled_is_delivered_by_the_next_life(
    start: Start, server: ScriptedServer, job: Callable[..., Answer]
) -> None:
    job("exit=0")
    server.on("run", Answer(503))
    worker = start()
    wait_until(lambda: server.received("run"))
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "draining: no more claims" in worker.log)  # two signals that come together are one
    worker.signal(signal.SIGTERM)
    worker.end(15)
    assert finals(server) == []
    server.on("run", STORED)
    assert start("--once").end() == 0
    assert finals(server) == ["complete"]
    assert len({asked.body for asked in server.received("run")}) == 1, "the very same bytes"


@pytest.mark.parametrize(
    ("failpoint", "runs_before"), [("worker.upload.before", 0), ("worker.ingest.acked", 1), ("worker.complete.send", 1)]
)
def test_a_worker_killed_around_its_upload_loses_nothing(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], failpoint: str, runs_before: int
) -> None:
    job("print=x", "exit=4")
    worker = start(ORCH_FP=f"{failpoint}=kill")
    assert worker.end() == -signal.SIGKILL
    assert len(server.received("run")) == runs_before
    assert finals(server) == []
    again = start("--once")
    assert again.end() == 0, again.log
    assert finals(server) == ["complete"]
    result = server.received("complete")[0].json["result"]
    assert (result["ingest_run_id"], result["exit_code"]) == ("run_1", 4)
    assert len({(asked.body, asked.headers["Idempotency-Key"]) for asked in server.received("run")}) == 1


def test_a_worker_killed_before_that_has_promised_nothing(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], open_dir: Path
) -> None:
    """Each life of the worker is killed one step later. The next one fails the job of the last, if that had begun."""
    failed = {"worker.claim.sent": 0, "worker.claimed": 0, "worker.checkout": 0, "worker.exec.before": 1}
    for failpoint, failed_before in failed.items():
        claims = len(server.received("leases"))
        job("exit=0")
        assert start(ORCH_FP=f"{failpoint}=kill").end() == -signal.SIGKILL, failpoint
        assert finals(server) == ["fail"] * failed_before, failpoint
        assert server.received("run") == [], failpoint
        # The kernel still delivers the request of the killed worker; the server may read it later.
        wait_until(lambda claims=claims: len(server.received("leases")) > claims)
    again = start("--once")
    assert again.end() == 0, again.log
    assert finals(server) == ["fail"] * 2
    assert list((open_dir / "work" / "jobs").iterdir()) == []
    assert list((open_dir / "work" / "spool").iterdir()) == []


@pytest.mark.parametrize(("fault", "thread"), [("heartbeat", "heartbeat"), ("watchdog", "lease-watchdog")])
def test_an_unexpected_error_in_a_critical_thread_ends_the_worker(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], tmp_path: Path, fault: str, thread: str
) -> None:
    job("print=x", "sleep=60")
    faults = tmp_path / "faults"
    worker = start("--capacity", "2", program=FAULTY, FAULT_FILE=str(faults))
    wait_until(lambda: server.received("logs"))
    faults.write_text(fault)
    assert worker.end(25) == 70, worker.log
    assert f"thread {thread} failed: the worker stops its jobs and exits" in worker.log
    assert f"injected fault: {fault}" in worker.log, "the traceback names the cause"
    assert f"the worker ended because its thread {thread} failed" in worker.log.splitlines()[-1]
    assert finals(server) == ["fail"], "the server knows at once; it need not wait for the lease to expire"
    assert server.received("fail")[0].json["result"]["reason"] == "worker_shutdown"


def test_a_worker_that_cannot_drain_after_such_an_error_exits_all_the_same(
    start: Start, server: ScriptedServer, job: Callable[..., Answer], tmp_path: Path
) -> None:
    job("print=x", "sleep=60")
    faults = tmp_path / "faults"
    worker = start(program=FAULTY, FAULT_FILE=str(faults), FORCED_EXIT_SECONDS="1")
    wait_until(lambda: server.received("logs"))
    faults.write_text("heartbeat drain")
    assert worker.end(40) == 70, worker.log
