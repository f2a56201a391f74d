"""The start of a worker: what it refuses, cleans and delivers before its first claim."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.benches import STORED
from tests.workers.agent.conftest import TOKEN, a_lease
from tests.workers.agent.scripted import Answer, Handler, ScriptedServer, hang_up, problem, scripted_server, stale
from workers.agent import retry
from workers.agent import worker as module
from workers.agent.errors import WorkerStartError
from workers.agent.result_spool import ResultSpool, SpoolEntry
from workers.agent.slots import WorkerSlots
from workers.agent.worker import WorkerOptions, WorkerProcess, capabilities
from workers.engines.contract import EngineCapabilities, Isolation
from workers.engines.null import FLAG, NullEngine


class Engine(NullEngine):
    """The null engine, with what `check` finds and a list of what it was asked."""

    def __init__(self, found: EngineCapabilities | None = None, owner: int | None = None) -> None:
        super().__init__()
        self.found = found or super().check()
        self.cleaned: list[Sequence[int]] = []
        self._owner = owner

    def check(self) -> EngineCapabilities:
        return self.found

    def owner(self, slot: int) -> int | None:
        return self._owner

    def clean(self, slots: Sequence[int]) -> None:
        self.cleaned.append(slots)


@pytest.fixture(autouse=True)
def _null(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FLAG, "1")
    monkeypatch.setattr(module, "WorkerSlots", lambda count, **given: WorkerSlots(count, tmp_path / "slots", **given))


@pytest.fixture
def options(server: ScriptedServer, token_file: Path, open_dir: Path) -> WorkerOptions:
    return WorkerOptions(
        server=server.url, token_file=token_file, worker_id=None, pool="shared-linux", work_dir=open_dir / "work"
    )


@pytest.fixture
def other() -> Iterator[ScriptedServer]:
    with scripted_server() as scripted:
        yield scripted


def spooled(options: WorkerOptions, **changes: Any) -> SpoolEntry:
    folder = options.work_dir / "spool"
    folder.mkdir(parents=True, exist_ok=True)
    entry = replace(SpoolEntry(options.server, a_lease(), {"exit_code": 0}, b'{"schema_version":"run.v1"}'), **changes)
    ResultSpool(folder).put(entry)
    return entry


def test_a_machine_that_lacks_something_is_not_offered_and_each_lack_is_named(
    options: WorkerOptions, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = EngineCapabilities(missing=("user namespaces are off", "strace is not installed"))
    with pytest.raises(WorkerStartError, match="cannot run here: user namespaces are off; strace is not installed"):
        WorkerProcess(options, Engine(lacking)).run()
    assert server.asked == []
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2


def test_a_machine_without_git_is_not_offered(
    options: WorkerOptions, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(WorkerStartError, match="not installed on this machine: git, setpriv, prlimit"):
        WorkerProcess(options, Engine()).run()
    assert server.asked == []


def test_soft_limits_are_shown_to_be_soft(options: WorkerOptions, caplog: pytest.LogCaptureFixture) -> None:
    WorkerProcess(options, Engine(EngineCapabilities(soft=("memory is watched, not limited",)))).run(once=True)
    assert "engine=null limit='memory is watched" in caplog.text


def test_a_worker_says_what_its_machine_can_do(options: WorkerOptions, server: ScriptedServer) -> None:
    WorkerProcess(options, Engine(EngineCapabilities(offered=frozenset({"linux", "egress"})))).run(once=True)
    sent = server.received("leases")[0].json
    assert sent["worker_id"] == "wrk_01jworker", "from the second line of the token file"
    assert sent["pool"] == "shared-linux"
    offered = {"linux": True, "egress": True, "resend": True, "namespaces": False, "restricted": False}
    assert sent["capabilities"] == offered


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_level_that_the_engine_does_not_have_is_never_offered(isolation: Isolation) -> None:
    sent = capabilities(EngineCapabilities(offered=frozenset({"namespaces", "restricted", "linux"})), isolation)
    assert sent["namespaces"] is (isolation is Isolation.NAMESPACES)
    assert sent["restricted"] is (isolation is Isolation.RESTRICTED)


def test_what_an_earlier_life_left_is_cleaned_before_the_first_claim(
    options: WorkerOptions, server: ScriptedServer
) -> None:
    (options.work_dir / "jobs" / "rtj_old" / "deep").mkdir(parents=True)
    engine = Engine()
    WorkerProcess(options, engine).run(once=True)
    assert engine.cleaned == [(0,), (0,)], "before the first claim, and at the end"
    assert list((options.work_dir / "jobs").iterdir()) == []


def test_the_result_of_an_earlier_life_is_delivered_before_the_first_claim(
    options: WorkerOptions, server: ScriptedServer
) -> None:
    entry = spooled(options)
    server.on("run", STORED)
    WorkerProcess(options, Engine()).run(once=True)
    assert server.calls == ["run", "complete", "leases"]
    assert server.received("run")[0].body == entry.payload
    assert "claim_next" not in server.received("complete")[0].json, "no slot becomes free"
    assert list((options.work_dir / "spool").iterdir()) == []


@pytest.mark.parametrize(
    "answer", [Answer(200, {}), stale(), problem(409, "conflict")], ids=["taken", "stale", "ended"]
)
def test_a_lease_of_an_earlier_life_is_ended_before_the_first_claim(
    options: WorkerOptions, server: ScriptedServer, answer: Answer
) -> None:
    folder = options.work_dir / "spool"
    folder.mkdir(parents=True)
    ResultSpool(folder).keep_lease(options.server, a_lease())
    server.on("fail", answer)
    WorkerProcess(options, Engine()).run(once=True)
    assert server.calls == ["fail", "leases"]
    assert server.received("fail")[0].json["result"]["reason"] == "worker_shutdown"
    assert "claim_next" not in server.received("fail")[0].json
    assert list(folder.iterdir()) == []


def test_a_lease_that_cannot_be_ended_is_tried_again_by_the_next_life(
    options: WorkerOptions, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPOOL_DELIVERY_SECONDS", 0.3)
    folder = options.work_dir / "spool"
    folder.mkdir(parents=True)
    ResultSpool(folder).keep_lease(options.server, a_lease())
    server.on("fail", hang_up)
    WorkerProcess(options, Engine()).run(once=True)
    assert server.calls[-1] == "leases"
    assert [path.suffix for path in folder.iterdir()] == [".lease"]


@pytest.mark.parametrize("answer", [problem(401, "unauthenticated"), Answer(403, b"<html>")])
def test_what_a_wrong_token_cannot_deliver_is_kept_for_the_next_life(
    options: WorkerOptions, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(module, "SPOOL_DELIVERY_SECONDS", 0.2)
    monkeypatch.setattr(retry, "MAX_REFUSED_SECONDS", 0.2)
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.05)
    entry = spooled(options)
    spool = ResultSpool(options.work_dir / "spool")
    spool.keep_lease(options.server, abandoned := a_lease(job_id="rtj_01jabandoned"))
    for call in ("run", "complete", "fail", "leases"):
        server.on(call, answer)
    with pytest.raises(WorkerStartError, match="refused the claim"):
        WorkerProcess(options, Engine()).run(once=True)
    assert list(spool.pending()) == [entry]
    assert list(spool.abandoned_leases(options.server)) == [abandoned]


def test_the_token_of_another_ingest_is_read_again_too(
    options: WorkerOptions, other: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.01)
    own = tmp_path / "ingest-token"
    own.write_text("rto_ingest_old\n")
    own.chmod(0o600)

    def rejected(handler: Handler, _: object) -> None:
        own.write_text("rto_ingest_new\n")
        handler.answer(problem(401, "unauthenticated"))

    other.on("run", rejected, STORED)
    spooled(options)
    WorkerProcess(replace(options, ingest_url=other.url, ingest_token_file=own), Engine()).run(once=True)
    assert [asked.headers["Authorization"] for asked in other.received("run")] == [
        "Bearer rto_ingest_old",
        "Bearer rto_ingest_new",
    ]
    assert list((options.work_dir / "spool").iterdir()) == []


def test_a_result_for_another_server_is_kept_and_not_shown_to_this_one(
    options: WorkerOptions, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    entry = spooled(options, server="https://elsewhere.example")
    WorkerProcess(options, Engine()).run(once=True)
    assert server.calls == ["leases"]
    assert list(ResultSpool(options.work_dir / "spool").pending()) == [entry]
    assert "another server job=rtj_01jjob server=https://elsewhere.example" in caplog.text


def test_an_ingest_that_is_away_does_not_keep_a_worker_from_working_for_long(
    options: WorkerOptions, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPOOL_DELIVERY_SECONDS", 0.3)
    spooled(options)
    server.on("run", hang_up)
    WorkerProcess(options, Engine()).run(once=True)
    assert server.received("fail")[0].json["result"]["reason"] == "upload_failed"
    assert server.calls[-1] == "leases"


def test_the_worker_s_token_does_not_go_to_another_ingest(
    options: WorkerOptions, server: ScriptedServer, other: ScriptedServer, token_file: Path, tmp_path: Path
) -> None:
    other.on("run", STORED)
    spooled(options)
    WorkerProcess(replace(options, ingest_url=other.url), Engine()).run(once=True)
    assert "Authorization" not in other.received("run")[0].headers
    own = tmp_path / "ingest-token"
    own.write_text("rto_ingest_own\n")
    own.chmod(0o600)
    spooled(options)
    WorkerProcess(replace(options, ingest_url=other.url, ingest_token_file=own), Engine()).run(once=True)
    assert other.received("run")[1].headers["Authorization"] == "Bearer rto_ingest_own"
    assert server.received("run") == []


def test_the_server_s_own_ingest_takes_the_worker_s_token(options: WorkerOptions, server: ScriptedServer) -> None:
    spooled(options)
    server.on("run", STORED)
    WorkerProcess(options, Engine()).run(once=True)
    assert server.received("run")[0].headers["Authorization"] == f"Bearer {TOKEN}"


def test_a_worker_that_does_not_know_who_it_is_does_not_start(options: WorkerOptions, token_file: Path) -> None:
    token_file.write_text(f"{TOKEN}\n")
    with pytest.raises(WorkerStartError, match="--worker-id"):
        WorkerProcess(options, Engine()).run()


def test_slots_of_other_accounts_need_a_folder_that_they_can_reach(options: WorkerOptions, open_dir: Path) -> None:
    (open_dir / "closed").mkdir(mode=0o700)
    closed = replace(options, work_dir=open_dir / "closed" / "work")
    with pytest.raises(WorkerStartError, match="cannot enter"):
        WorkerProcess(closed, Engine(owner=61999)).run()
    WorkerProcess(closed, Engine()).run(once=True)


@pytest.mark.parametrize("server_url", ["http://orchestrator.example", "https://ann:secret@orchestrator.example"])
def test_a_server_that_tokens_must_not_go_to_is_refused(options: WorkerOptions, server_url: str) -> None:
    with pytest.raises(WorkerStartError):
        WorkerProcess(replace(options, server=server_url), Engine())


def test_a_session_is_newer_than_the_one_before(options: WorkerOptions, server: ScriptedServer) -> None:
    for _ in range(2):
        server.on("leases", Answer(204))
        WorkerProcess(options, Engine()).run(once=True)
    first, second = (asked.headers["Worker-Session"] for asked in server.received("leases"))
    assert first < second
    assert first == first.lower()
