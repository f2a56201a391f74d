from __future__ import annotations

import base64
import email.utils
import logging
import time

import pytest

from tests.workers.agent.conftest import LEASE_ID, TOKEN, claim_body
from tests.workers.agent.scripted import Answer, ScriptedServer, hang_up, problem, stale
from workers.agent.errors import (
    AgentError,
    LeaseRejected,
    ProtocolError,
    RequestRefused,
    RequestRejected,
    ServerConflict,
    ServerUnreachable,
    TransientRefusal,
)
from workers.agent.http.client import ClaimOffer, HeartbeatResponse, OrchestratorClient, retry_after
from workers.agent.http.transport import HttpResponseData as Told
from workers.agent.http.wire import LeasePayload

OFFER = ClaimOffer("wrk_01jworker", "shared-linux", {"linux": True, "namespaces": True})


def test_a_claim_says_who_asks_what_it_can_do_and_that_it_will_acknowledge(
    client: OrchestratorClient, server: ScriptedServer
) -> None:
    server.on("leases", Answer(201, claim_body()))
    (lease,) = client.claim(OFFER, wait_seconds=5, key="01jkey")
    assert lease.job.job_id == "rtj_01jjob"
    asked = server.asked[0]
    assert asked.path == "/v1/runtime/leases"
    assert asked.json == {
        "worker_id": "wrk_01jworker",
        "pool": "shared-linux",
        "capabilities": {"linux": True, "namespaces": True},
        "job_types": ["runtime", "steps", "pack-run", "actions"],
        "wait_seconds": 5,
        "acknowledge": True,
    }
    assert asked.headers["Idempotency-Key"] == "01jkey"
    assert asked.headers["Worker-Session"] == "01jsession"


def test_no_work_is_no_lease(client: OrchestratorClient) -> None:
    assert client.claim(OFFER, wait_seconds=0, key="k") == []


def test_a_job_that_cannot_be_read_is_given_back_to_others(client: OrchestratorClient, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, claim_body(execution__least_isolation="microvm")))
    with pytest.raises(ProtocolError, match="least_isolation"):
        client.claim(OFFER, wait_seconds=0, key="k")
    (given_back,) = server.received("release")
    assert given_back.json["unable"] is True


def test_a_claim_for_many_says_how_many_and_may_be_answered_at_length(
    client: OrchestratorClient, server: ScriptedServer
) -> None:
    long = claim_body(execution__command=["x" * 700_000])
    server.on("leases", Answer(201, {"leases": [long, long]}))
    leases = client.claim(OFFER, wait_seconds=0, key="k", max_leases=2)
    assert [lease.job.job_id for lease in leases] == ["rtj_01jjob"] * 2
    assert server.asked[0].json["max_leases"] == 2


@pytest.mark.parametrize("body", [{"leases": []}, {"leases": {}}, {"leases": [7]}, {"leases": None}])
def test_a_claim_that_is_answered_with_nothing_of_use_is_malformed(
    client: OrchestratorClient, server: ScriptedServer, body: dict[str, object]
) -> None:
    server.on("leases", Answer(201, body))
    with pytest.raises(ProtocolError):
        client.claim(OFFER, wait_seconds=0, key="k", max_leases=2)


def test_heartbeats_for_many_bring_an_answer_for_each(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    def result(status: object, **members: object) -> dict[str, object]:
        return {"lease_id": LEASE_ID, "status": status, **members}

    server.on("heartbeat", Answer(200, {"results": [
        result(200, body={"cancel_requested": True, "cancel_reason": "requested"}),
        result(200, body={"cancel_deadline_seconds": "soon"}),
        result(409, error={"code": "stale_lease", "reason": "lease_expired"}),
        result(409, error={"code": "illegal_move"}),
        result(400, error={"code": "invalid"}),
        result(503, error={"code": "busy"}),
        result("200", body={}),
        result(200, body={}) | {"lease_id": "rtl_other"},
        [],
    ]}))  # fmt: skip
    answers = client.heartbeat_many([(lease, {"phase": "executing"})] * 9, within=5)
    assert answers[0] == HeartbeatResponse(cancel_requested=True, cancel_reason="requested")
    assert [type(answer) for answer in answers[1:]] == [
        ProtocolError, LeaseRejected, ServerConflict, RequestRefused, ServerUnreachable, ProtocolError, ProtocolError, ProtocolError,
    ]  # fmt: skip
    assert server.asked[0].path == "/v1/runtime/leases/heartbeat"
    assert server.asked[0].json["leases"][0] == {"lease_id": LEASE_ID, "phase": "executing"}
    assert all(LEASE_ID not in str(answer) for answer in answers)


@pytest.mark.parametrize("body", [{}, {"results": []}, {"results": {}}])
def test_fewer_answers_than_heartbeats_are_none(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, body: dict[str, object]
) -> None:
    server.on("heartbeat", Answer(200, body))
    with pytest.raises(ProtocolError):
        client.heartbeat_many([(lease, {})] * 2, within=5)


def test_each_message_has_its_path_and_its_body(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    client.acknowledge(lease)
    client.report(lease, "executing")
    client.log(lease, 3, b"\x00\xff")
    client.complete(lease, {"ingest_run_id": "run_1"})
    client.fail(lease, {"reason": "timed_out", "message": "m"})
    client.acknowledge_cancel(lease, "m")
    client.release(lease, "m", unable=True)
    assert [(asked.path.removeprefix(f"/v1/runtime/leases/{LEASE_ID}/"), asked.json) for asked in server.asked] == [
        ("acknowledge", {}),
        ("report", {"phase": "executing"}),
        ("logs", {"step": 0, "seq": 3, "chunk": base64.b64encode(b"\x00\xff").decode()}),
        ("complete", {"result": {"status": "uploaded", "ingest_run_id": "run_1"}}),
        ("fail", {"result": {"status": "failed", "reason": "timed_out", "message": "m"}}),
        ("acknowledge-cancel", {"message": "m"}),
        ("release", {"message": "m", "unable": True}),
    ]


def test_a_heartbeat_hears_the_cancel_and_its_deadline(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    answer = {"cancel_requested": True, "cancel_reason": "requested", "cancel_deadline_seconds": 12.5}
    server.on("heartbeat", Answer(200, answer), Answer(200, {"cancel_requested": False}))
    assert client.heartbeat(lease, {}, within=5) == HeartbeatResponse(
        cancel_requested=True, cancel_reason="requested", cancel_deadline_seconds=12.5
    )
    assert client.heartbeat(lease, {}, within=5) == HeartbeatResponse()


@pytest.mark.parametrize("deadline", ["soon", True, []])
def test_a_deadline_that_is_no_number_is_refused(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, deadline: object
) -> None:
    server.on("heartbeat", Answer(200, {"cancel_deadline_seconds": deadline}))
    with pytest.raises(ProtocolError):
        client.heartbeat(lease, {}, within=5)


def test_a_stale_lease_has_its_own_error_with_the_reason(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    server.on("acknowledge", stale("lease_revoked"))
    with pytest.raises(LeaseRejected) as caught:
        client.acknowledge(lease)
    assert caught.value.reason == "lease_revoked"


def test_another_conflict_brings_its_facts(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    server.on("logs", problem(409, "chunk_gap", expected_seq=2))
    with pytest.raises(ServerConflict) as caught:
        client.log(lease, 5, b"x")
    assert caught.value.code == "chunk_gap"
    assert caught.value.facts["expected_seq"] == 2


@pytest.mark.parametrize("status", [400, 403, 404, 405, 413, 415, 302])
def test_a_refusal_is_not_worth_another_try(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, status: int
) -> None:
    server.on("acknowledge", problem(status, "some_code"))
    with pytest.raises(RequestRefused) as caught:
        client.acknowledge(lease)
    assert (caught.value.status, caught.value.code) == (status, "some_code")
    assert not isinstance(caught.value, TransientRefusal)


@pytest.mark.parametrize(
    "answer",
    [
        problem(401, "unauthenticated"),
        *(Answer(status, b"<html>") for status in (301, 302, 307, 401, 403, 404, 407)),
        Answer(403, {"message": "Forbidden"}),
    ],
)
def test_a_rejected_token_and_a_refusal_of_a_proxy_may_end(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, answer: Answer
) -> None:
    server.on("complete", answer, Answer())
    with pytest.raises(TransientRefusal) as caught:
        client.complete(lease, {}, OFFER)
    assert caught.value.status == answer.status
    assert not caught.value.is_final
    assert len(server.asked) == 1, "the claim is not the reason"


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        *((problem(status, "some_code"), True) for status in (400, 409, 413, 422)),
        *((problem(status, "some_code"), False) for status in (401, 402, 403, 404, 405, 415)),
        *((Answer(status, b"<html>"), False) for status in (400, 409, 413, 422)),
        (stale(), True),
    ],
)
def test_only_a_refusal_of_the_message_by_the_server_is_final(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, answer: Answer, final: bool
) -> None:
    server.on("complete", answer)
    with pytest.raises(RequestRejected) as caught:
        client.complete(lease, {})
    assert caught.value.is_final is final


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_worth_another_try(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, status: int
) -> None:
    server.on("acknowledge", Answer(status, b"<html>", {"Retry-After": "7"}))
    with pytest.raises(ServerUnreachable) as caught:
        client.acknowledge(lease)
    assert caught.value.retry_after == 7


def test_a_full_quota_of_artifacts_is_not_worth_another_try(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    server.on("artifacts", Answer(429, {"code": "artifact_quota", "detail": "The plan allows 2."}))
    with pytest.raises(RequestRefused) as caught:
        client.begin_artifact(lease, "a", 1)
    assert (caught.value.status, caught.value.code) == (429, "artifact_quota")


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'"x"', b"\xff", b"[" * 100_000])
def test_a_success_that_is_no_object_is_no_answer(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, body: bytes
) -> None:
    server.on("acknowledge", Answer(200, body))
    with pytest.raises(ServerUnreachable):
        client.acknowledge(lease)


def test_a_refusal_that_is_no_problem_document_is_still_a_refusal(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload
) -> None:
    server.on("acknowledge", Answer(409, b"<html>conflict</html>"))
    with pytest.raises(ServerConflict) as caught:
        client.acknowledge(lease)
    assert caught.value.code == "unknown"


def test_a_rotated_token_is_read_again_after_a_refusal(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, token_file: object
) -> None:
    server.on("acknowledge", problem(401, "unauthenticated"), Answer())
    token_file.write_text("rto_worker_rotated\n")  # type: ignore[attr-defined] # a Path
    with pytest.raises(TransientRefusal):
        client.acknowledge(lease)
    client.acknowledge(lease)
    assert [asked.headers["Authorization"] for asked in server.asked] == [
        f"Bearer {TOKEN}",
        "Bearer rto_worker_rotated",
    ]


def test_neither_lease_nor_token_is_in_any_log_line_or_error(
    client: OrchestratorClient, server: ScriptedServer, lease: LeasePayload, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [repr(lease), repr(client)]
    # Some servers put the path into their answers.
    echo = problem(403, "forbidden", detail=f"/v1/runtime/leases/{LEASE_ID} for {TOKEN}")
    for script in (echo, hang_up, stale(LEASE_ID), Answer(500), Answer(200, b"?"), Answer(200, b"", {"X": "\r: y"})):
        server.on("acknowledge", script)
        try:
            client.acknowledge(lease)
        except AgentError as error:
            texts += [str(error), repr(error)]
    texts.append(caplog.text)
    assert not [text for text in texts if LEASE_ID in text or TOKEN in text]


@pytest.mark.parametrize(("header", "seconds"), [("5", 5), ("", None), ("soon", None), ("-1", None), ("1e9", None)])
def test_retry_after_counts_in_seconds(header: str, seconds: float | None) -> None:
    assert retry_after(Told(429, {"Retry-After": header}, b"")) == seconds


def test_retry_after_may_be_a_date() -> None:
    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < (retry_after(Told(429, {"Retry-After": soon}, b"")) or 0) <= 30
