"""The protocol graphql-transport-ws: each message, each code of a Close frame, and the bounds of a connection."""

import orjson
import pytest

from orchestrator.http.asgi.sockets import CloseSocket, SendText
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.graph.socket_session import (
    INIT_SECONDS,
    MAX_OPERATIONS,
    Admit,
    Admitted,
    Answer,
    Begin,
    CredentialEnd,
    GraphQLSession,
    Pull,
    Stop,
    WatchCredential,
)

NOW = 100.0
REQUEST = {"query": "{ __typename }"}


def receive(session, message):
    return shown(session.receive(session.parse(orjson.dumps(message).decode()), NOW))


def shown(effects):
    """Effects, with the messages in text frames."""
    return [orjson.loads(effect.text) if isinstance(effect, SendText) else effect for effect in effects]


def subscribe(session, name):
    return receive(session, {"type": "subscribe", "id": name, "payload": REQUEST})


@pytest.fixture
def session():
    return GraphQLSession(now=NOW, max_seconds=3600)


@pytest.fixture
def ready(session):
    receive(session, {"type": "connection_init"})
    session.resolve(Admitted(), NOW)
    return session


@pytest.mark.parametrize("payload", [{}, {"payload": None}, {"payload": {"Authorization": "Bearer x"}}])
def test_a_client_is_admitted_and_its_credential_watched(session, payload):
    assert receive(session, {"type": "connection_init", **payload}) == [Admit(payload.get("payload") or {})]
    assert not session.accepts_frames
    assert shown(session.resolve(Admitted(), NOW)) == [{"type": "connection_ack"}, WatchCredential()]
    assert session.accepts_frames
    assert session.deadline == NOW + 3600


@pytest.mark.parametrize(("status", "code"), [(401, 4401), (403, 4403), (429, 1013), (503, 1013)])
def test_a_refused_client_is_closed(session, status, code):
    receive(session, {"type": "connection_init"})
    assert session.resolve(ApiError(status, "reason", ""), NOW) == [CloseSocket(code, "reason")]
    assert receive(session, {"type": "ping"}) == []


def test_a_client_that_sends_nothing_is_closed(session):
    assert session.deadline == NOW + INIT_SECONDS
    assert session.advance(session.deadline) == [CloseSocket(4408, "Connection initialisation timeout")]


def test_a_request_before_the_admission_is_closed(session):
    assert subscribe(session, "1") == [CloseSocket(4401, "Unauthorized")]


def test_a_second_initialisation_is_closed(ready):
    assert receive(ready, {"type": "connection_init"}) == [CloseSocket(4429, "Too many initialisation requests")]


def test_an_old_connection_is_closed_so_that_the_client_connects_again(ready):
    assert ready.advance(ready.deadline) == [CloseSocket(1001, "Connect again")]


@pytest.mark.parametrize(("is_revoked", "code"), [(True, 4403), (False, 1001)])
def test_the_end_of_the_credential_closes(ready, is_revoked, code):
    (effect,) = ready.resolve(CredentialEnd(is_revoked=is_revoked), NOW)
    assert effect.code == code


def test_pings_are_answered(session, ready):
    assert receive(ready, {"type": "ping", "payload": {"x": 1}}) == [{"type": "pong"}]
    assert receive(ready, {"type": "pong"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "", "5", "[]", "{", '{"type": "start"}', '{"type": 5}', '{"id": "1"}', '{"type": "connection_init", "payload": 5}',
        '{"type": "subscribe", "id": "1"}', '{"type": "subscribe", "id": 1, "payload": {}}',
        '{"type": "subscribe", "id": "", "payload": {}}', '{"type": "subscribe", "payload": {}}',
        '{"type": "subscribe", "id": "' + "x" * 101 + '", "payload": {}}', '{"type": "ping", "type": "ping"}',
        '{"type": "complete"}', '{"type": "complete", "id": []}',
    ],
)  # fmt: skip
def test_an_invalid_message_is_closed(ready, text):
    assert ready.receive(ready.parse(text), NOW) == [CloseSocket(4400, "Invalid message")]


def test_a_binary_frame_is_closed(ready):
    assert ready.receive_bytes(NOW) == [CloseSocket(4400, "Invalid message")]


def test_a_query_is_one_response(ready):
    assert subscribe(ready, "a") == [Begin(0, REQUEST)]
    assert shown(ready.resolve(Answer(0, {"data": 1}), NOW)) == [
        {"type": "next", "id": "a", "payload": {"data": 1}},
        {"type": "complete", "id": "a"},
    ]


def test_a_subscription_continues_after_each_message(ready):
    subscribe(ready, "a")
    assert ready.resolve(Answer(0, has_more=True), NOW) == [Pull(0)]
    for number in range(3):
        response = {"data": number}
        assert shown(ready.resolve(Answer(0, response, has_more=True), NOW)) == [
            {"type": "next", "id": "a", "payload": response},
            Pull(0),
        ]
    assert shown(ready.resolve(Answer(0), NOW)) == [{"type": "complete", "id": "a"}]


def test_an_error_ends_a_request(ready):
    subscribe(ready, "a")
    errors = [{"message": "no"}]
    assert shown(ready.resolve(Answer(0, errors=errors), NOW)) == [{"type": "error", "id": "a", "payload": errors}]
    assert subscribe(ready, "a") == [Begin(1, REQUEST)]


def test_two_requests_of_one_id_are_closed(ready):
    subscribe(ready, "a")
    assert subscribe(ready, "a") == [CloseSocket(4409, "Subscriber for a already exists")]


def test_a_client_ends_a_subscription(ready):
    subscribe(ready, "a")
    ready.resolve(Answer(0, has_more=True), NOW)
    assert receive(ready, {"type": "complete", "id": "a"}) == [Stop(0)]
    assert receive(ready, {"type": "complete", "id": "a"}) == []
    assert not ready.resolve(Answer(0, {"data": 1}), NOW), "its message comes too late"
    assert not ready.resolve(None, NOW)
    assert subscribe(ready, "a") == [Begin(1, REQUEST)], "the id is free"


def test_a_subscription_that_begins_after_its_end_is_stopped(ready):
    subscribe(ready, "a")
    assert receive(ready, {"type": "complete", "id": "a"}) == [Stop(0)]
    assert not ready.resolve(None, NOW)
    assert ready.resolve(Answer(0, has_more=True), NOW) == [Stop(0)]


def test_requests_at_once_are_bounded(ready):
    for number in range(MAX_OPERATIONS):
        assert subscribe(ready, f"a{number}") == [Begin(number, REQUEST)]
    (refusal,) = subscribe(ready, "one too many")
    assert (refusal["type"], refusal["payload"][0]["extensions"]["code"]) == ("error", "too_many_streams")
    ready.resolve(Answer(0), NOW)
    assert subscribe(ready, "one too many") == [Begin(MAX_OPERATIONS, REQUEST)]


def test_operations_that_have_not_ended_are_bounded(ready):
    for number in range(2 * MAX_OPERATIONS):
        assert ready.accepts_frames
        subscribe(ready, f"a{number}")
        receive(ready, {"type": "complete", "id": f"a{number}"})
        if not ready.accepts_frames:
            break
    assert not ready.accepts_frames
    assert number < MAX_OPERATIONS
    ready.resolve(None, NOW)
    assert ready.accepts_frames


def test_nothing_follows_the_end_of_the_connection(ready):
    subscribe(ready, "a")
    assert ready.end_connection() == ()
    for result in (Answer(0, {"data": 1}, has_more=True), CredentialEnd(is_revoked=True), None):
        assert list(ready.resolve(result, NOW)) == []
    assert list(ready.shut_down()) == []


def test_a_failure_of_the_server_is_closed(ready):
    assert ready.fail_operation(NOW) == [CloseSocket(4500, "Internal error")]


def test_the_end_of_the_process_is_announced(ready):
    assert ready.shut_down() == [CloseSocket(1001, "server shutting down")]
