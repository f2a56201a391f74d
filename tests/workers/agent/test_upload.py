from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.agent.conftest import TOKEN
from tests.workers.agent.scripted import (
    Answer,
    Asked,
    Handler,
    Script,
    ScriptedServer,
    drip,
    endless,
    hang_up,
    problem,
)
from workers.agent.credentials import TokenFile
from workers.agent.http.transport import Timeouts, Transport
from workers.agent.retry import RetryBudget
from workers.agent.upload import IngestClient, UploadFailed, UploadRejected, ingest_origin

JOB = "rtj_01jjob"
STORED = Answer(201, {"run_id": "run_1", "job_id": JOB, "created": True})


@pytest.fixture
def ingest(server: ScriptedServer) -> Iterator[IngestClient]:
    transport = Transport(server.url, lambda: "rto_worker_x")
    yield IngestClient(transport)
    transport.close()


@pytest.fixture
def at_once() -> Callable[[float], bool]:
    """Tries again without waiting, a hundred times."""
    left = [100]

    def budget(seconds: float) -> bool:
        assert seconds > 0
        left[0] -= 1
        return left[0] > 0

    return budget


def test_the_run_is_stored_under_the_job_s_key(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool]
) -> None:
    server.on("run", STORED)
    assert ingest.store(JOB, b'{"a": 1}', budget=at_once) == "run_1"
    (asked,) = server.asked
    assert asked.path == "/v1/ingest/run"
    assert asked.body == b'{"a": 1}'
    assert asked.headers["Idempotency-Key"] == JOB


@pytest.mark.parametrize("trouble", [Answer(500), Answer(502), Answer(503), Answer(429), hang_up])
def test_trouble_is_tried_again_with_the_same_bytes_and_key(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool], trouble: Script
) -> None:
    server.on("run", trouble, trouble, Answer(200, {"run_id": "run_1", "created": False}))
    assert ingest.store(JOB, b"{}", budget=at_once) == "run_1"
    assert {(asked.body, asked.headers["Idempotency-Key"]) for asked in server.asked} == {(b"{}", JOB)}
    assert len(server.asked) == 3


def test_retry_after_is_honoured_up_to_a_minute(ingest: IngestClient, server: ScriptedServer) -> None:
    waits: list[float] = []

    def budget(seconds: float) -> bool:
        waits.append(seconds)
        return True

    server.on("run", Answer(429, {}, {"Retry-After": "20"}), Answer(503, {}, {"Retry-After": "9999"}), STORED)
    ingest.store(JOB, b"{}", budget=budget)
    assert waits == [20, 60]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422, 302])
def test_a_refusal_is_not_tried_again_and_says_why(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool], status: int
) -> None:
    server.on("run", problem(status, "validation_failed"))
    with pytest.raises(UploadRejected, match=f"{status} validation_failed"):
        ingest.store(JOB, b"{}", budget=at_once)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [302, 403, 404, 407])
@pytest.mark.parametrize("body", [b"", b"<html>", {}, {"message": "Forbidden"}])
def test_a_refusal_of_a_proxy_is_tried_again(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool], status: int, body: object
) -> None:
    server.on("run", Answer(status, body), Answer(status, body), STORED)
    assert ingest.store(JOB, b"{}", budget=at_once) == "run_1"
    assert {asked.body for asked in server.asked} == {b"{}"}


def test_a_rotated_token_is_read_again_when_ingest_rejects_the_old_one(
    server: ScriptedServer, at_once: Callable[[float], bool], token_file: Path
) -> None:
    token = TokenFile(token_file)
    transport = Transport(server.url, token.current)

    def rejected(handler: Handler, _: Asked) -> None:
        if len(server.received("run")) == 2:  # the operator pastes the new token a while after the old one ended
            token_file.write_text("rto_worker_rotated\n")
        handler.answer(problem(401, "unauthenticated"))

    server.on("run", rejected, rejected, STORED)
    with contextlib.closing(transport):
        ingest = IngestClient(transport, token=token)
        assert ingest.store(JOB, b"{}", budget=at_once) == "run_1"
    assert [asked.headers["Authorization"] for asked in server.asked] == [
        *[f"Bearer {TOKEN}"] * 2,
        "Bearer rto_worker_rotated",
    ]


def test_a_token_that_stays_wrong_ends_with_the_budget(
    ingest: IngestClient, server: ScriptedServer, token_file: Path
) -> None:
    server.on("run", problem(401, "unauthenticated"))
    with pytest.raises(UploadFailed, match="401 unauthenticated"):
        replace(ingest, token=TokenFile(token_file)).store(JOB, b"{}", budget=RetryBudget(threading.Event(), 0.3))


def test_the_contract_s_own_form_of_error_is_understood(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool]
) -> None:
    server.on("run", Answer(422, {"error": {"code": "validation_failed", "message": "files: too many\x00"}}))
    with pytest.raises(UploadRejected, match=r"422 validation_failed files: too many$"):
        ingest.store(JOB, b"{}", budget=at_once)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"<html>"),
        Answer(200, b""),
        Answer(200, []),
        Answer(200, {}),
        Answer(200, {"run_id": 7}),
        Answer(200, {"run_id": "../../etc"}),
        Answer(200, {"run_id": "x" * 65}),
        Answer(200, {"run_id": "run_1\n"}),
        Answer(200, {"run_id": "run_1", "job_id": "rtj_anothers"}),
        Answer(200, {"run_id": "run_1", "job_id": JOB, "created": False, "payload_match": False}),
        Answer(200, {"run_id": "run_1", "payload_match": "no"}),
        Answer(201, {"run_id": "run_1", "payload_sha256": "0" * 64}),
        endless,
    ],
)
def test_a_success_that_names_no_run_of_this_job_is_a_refusal(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool], answer: Script
) -> None:
    server.on("run", answer)
    with pytest.raises(UploadRejected):
        IngestClient(ingest.transport).store(JOB, b"{}", budget=at_once)


def test_an_ingest_that_answers_with_the_digest_that_was_sent_is_believed(
    ingest: IngestClient, server: ScriptedServer, at_once: Callable[[float], bool]
) -> None:
    server.on("run", Answer(201, {"run_id": "run_1", "payload_sha256": "a" * 64, "payload_match": True}))
    body = b'{"payload_sha256": "' + b"a" * 64 + b'"}'
    assert ingest.store(JOB, body, budget=at_once, fence=3) == "run_1"
    assert server.asked[0].headers["Lease-Fence"] == "3"


def test_a_dripping_ingest_costs_the_total_time_and_no_more(ingest: IngestClient, server: ScriptedServer) -> None:
    server.on("run", drip)
    begun = time.monotonic()
    limited = replace(ingest, timeouts=Timeouts(connect=5, read=30, total=1))
    with pytest.raises(UploadFailed):
        limited.store(JOB, b"{}", budget=lambda seconds: False)
    assert time.monotonic() - begun < 3


def test_the_budget_ends_the_tries(ingest: IngestClient, server: ScriptedServer) -> None:
    server.on("run", Answer(500))
    begun = time.monotonic()
    with pytest.raises(UploadFailed, match="500"):
        ingest.store(JOB, b"{}", budget=RetryBudget(threading.Event(), 0.5))
    assert 0.4 < time.monotonic() - begun < 3


def test_a_lost_lease_ends_the_tries(ingest: IngestClient, server: ScriptedServer) -> None:
    server.on("run", Answer(500))
    over = threading.Event()
    over.set()
    with pytest.raises(UploadFailed):
        ingest.store(JOB, b"{}", budget=RetryBudget(over))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("", "https://o.example"),
        ("https://i.example", "https://i.example"),
        ("https://i.example/", "https://i.example"),
        ("https://i.example/v1/ingest/run", "https://i.example"),
        ("https://i.example/base/v1/ingest/run", "https://i.example/base"),
    ],
)
def test_ingest_is_the_server_s_own_unless_another_is_named(given: str, origin: str) -> None:
    assert ingest_origin("https://o.example", given) == origin
