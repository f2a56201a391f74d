from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.agent.conftest import LEASE_ID
from tests.workers.agent.scripted import Answer, Handler, ScriptedServer, hang_up, problem, stale
from tests.workers.agent.test_spool import an_entry
from workers.agent import retry
from workers.agent.credentials import TokenFile
from workers.agent.http.client import OrchestratorClient
from workers.agent.http.transport import Transport
from workers.agent.result_delivery import MAX_ENCLOSED_BYTES, ResultDelivery
from workers.agent.result_spool import ResultSpool
from workers.agent.upload import IngestClient

STORED = Answer(200, {"run_id": "run_1"})


@pytest.fixture
def spool(tmp_path: Path) -> ResultSpool:
    folder = tmp_path / "spool"
    folder.mkdir()
    return ResultSpool(folder)


@pytest.fixture
def delivery(
    client: OrchestratorClient,
    server: ScriptedServer,
    spool: ResultSpool,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ResultDelivery]:
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.01)
    token = TokenFile(token_file)
    transport = Transport(server.url, token.current)
    yield ResultDelivery(client, IngestClient(transport, token=token), spool, upload_seconds=60)
    transport.close()


@pytest.fixture
def over() -> threading.Event:
    return threading.Event()


def test_a_result_is_uploaded_completed_and_removed(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", STORED)
    spool.put(entry := an_entry(payload=b'{"b": 2}'))
    delivery.deliver(entry, over=over)
    assert server.calls == ["run", "complete"]
    assert server.received("run")[0].body == b'{"b": 2}'
    result = server.received("complete")[0].json["result"]
    assert result.pop("uploaded_at")
    assert result == {"status": "uploaded", "ingest_run_id": "run_1", "exit_code": 0}
    assert list(spool.pending()) == []


def test_another_payload_at_ingest_is_a_failure_and_never_a_success(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", Answer(200, {"run_id": "run_forged", "created": False, "payload_match": False}))
    server.on("fail", Answer(200, {"status": "failed"}))
    spool.put(entry := an_entry(payload=b'{"b": 2}'))
    delivery.deliver(entry, over=over)
    assert server.calls == ["run", "fail"]
    result = server.received("fail")[0].json["result"]
    assert result["reason"] == "upload_rejected"
    assert "another payload" in result["message"]
    assert list(spool.pending()) == []


def test_a_complete_whose_answer_was_lost_is_sent_again(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", STORED)
    server.on("complete", hang_up, Answer(503), Answer(200, {"status": "uploaded"}))
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    received = {asked.body for asked in server.received("complete")}
    assert len(server.received("complete")) == 3
    assert len(received) == 1, "the same message"
    assert list(spool.pending()) == []


def test_a_stale_lease_drops_the_result_with_a_line(
    delivery: ResultDelivery,
    server: ScriptedServer,
    spool: ResultSpool,
    over: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.on("run", STORED)
    server.on("complete", stale())
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert list(spool.pending()) == []
    assert "result dropped: the lease has ended job=rtj_01jjob reason=lease_expired" in caplog.text
    assert LEASE_ID not in caplog.text


@pytest.mark.parametrize("answer", [problem(status, "some_code") for status in (400, 409, 413, 422)])
def test_a_refused_end_drops_the_result(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event, answer: Answer
) -> None:
    server.on("run", STORED)
    server.on("complete", answer)
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert len(server.received("complete")) == 1
    assert list(spool.pending()) == []


@pytest.mark.parametrize(
    "answer", [problem(401, "unauthenticated"), Answer(302), Answer(403, b"<html>"), Answer(404, b"<html>")]
)
def test_an_end_that_is_refused_for_a_while_is_sent_again(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event, answer: Answer
) -> None:
    server.on("run", answer, answer, STORED)
    server.on("complete", answer, answer, Answer(200, {"status": "uploaded"}))
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert server.calls == ["run"] * 3 + ["complete"] * 3
    assert len({asked.body for asked in server.received("complete")}) == 1, "the same message"
    assert list(spool.pending()) == []


def test_a_token_that_is_rejected_until_it_is_over_keeps_the_result_here(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    def rejected(handler: Handler, _: object) -> None:
        if len(server.received("complete")) == 3:
            over.set()
        handler.answer(problem(401, "unauthenticated"))

    server.on("run", STORED)
    server.on("complete", rejected)
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert len(server.received("complete")) == 3
    assert list(spool.pending()) == [entry]


def test_a_result_of_an_earlier_process_is_kept_after_the_time_for_its_final_message(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    """A worker that starts with a wrong token would else claim after ten minutes for each result."""
    server.on("run", STORED)
    server.on("complete", problem(401, "unauthenticated"))
    spool.put(entry := an_entry())
    replace(delivery, message_seconds=0.1).deliver(entry, over=over)
    assert len(server.received("complete")) >= 2
    assert list(spool.pending()) == [entry]


def test_a_token_that_stays_wrong_does_not_keep_the_slot(
    delivery: ResultDelivery,
    server: ScriptedServer,
    spool: ResultSpool,
    over: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "MAX_REFUSED_SECONDS", 0.2)
    server.on("run", STORED)
    server.on("complete", problem(401, "unauthenticated"))
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert len(server.received("complete")) > 1
    assert list(spool.pending()) == [entry]


@pytest.mark.parametrize("answer", [problem(403, "https_required"), problem(404, "not_found"), Answer(413, b"<html>")])
def test_a_refusal_that_is_not_of_the_message_keeps_the_result(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event, answer: Answer
) -> None:
    server.on("run", STORED)
    server.on("complete", answer)
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert len(server.received("complete")) == 1
    assert list(spool.pending()) == [entry]


def test_a_rejected_run_fails_the_job_without_the_payload(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", problem(422, "validation_failed"))
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    result = server.received("fail")[0].json["result"]
    assert result["reason"] == "upload_rejected"
    assert "validation_failed" in result["message"]
    assert result["exit_code"] == 0
    assert "payload" not in result
    assert list(spool.pending()) == []


def test_a_failed_upload_hands_the_payload_to_the_server(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", Answer(500))
    spool.put(entry := an_entry(payload=b'{"schema_version": "run.v1"}'))
    replace(delivery, upload_seconds=0.5).deliver(entry, over=over)
    result = server.received("fail")[0].json["result"]
    assert result["reason"] == "upload_failed"
    assert result["payload"] == {"schema_version": "run.v1"}
    assert list(spool.pending()) == []


def test_a_payload_that_is_too_large_for_the_server_stays_behind(
    delivery: ResultDelivery,
    server: ScriptedServer,
    spool: ResultSpool,
    over: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.on("run", Answer(500))
    payload = ('{"a":"' + "ü" * (MAX_ENCLOSED_BYTES // 4) + '"}').encode()
    assert len(payload) < MAX_ENCLOSED_BYTES, "as it lies here; on the way to the server it is larger"
    spool.put(entry := an_entry(payload=payload))
    replace(delivery, upload_seconds=0.5).deliver(entry, over=over)
    assert "payload" not in server.received("fail")[0].json["result"]


def test_a_worker_that_must_go_leaves_the_result_for_its_next_life(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", Answer(500))
    spool.put(entry := an_entry())
    over.set()
    delivery.deliver(entry, over=over)
    assert server.calls == ["run"]
    assert list(spool.pending()) == [entry]


def test_a_server_that_is_away_when_it_is_over_keeps_the_result_here(
    delivery: ResultDelivery, server: ScriptedServer, spool: ResultSpool, over: threading.Event
) -> None:
    server.on("run", STORED)

    def gone(handler: object, asked: object) -> None:
        over.set()
        hang_up(handler, asked)  # type: ignore[arg-type] # as the server calls it

    server.on("complete", gone)
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert list(spool.pending()) == [entry]


def test_each_failpoint_stands_where_its_name_says(
    delivery: ResultDelivery,
    server: ScriptedServer,
    spool: ResultSpool,
    over: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("workers.agent.result_delivery.failpoint", lambda name: passed.append((name, server.calls)))
    server.on("run", STORED)
    spool.put(entry := an_entry())
    delivery.deliver(entry, over=over)
    assert passed == [("worker.ingest.acked", ["run"]), ("worker.complete.send", ["run"])]
    assert logging.getLogger("urllib3").level == logging.CRITICAL
