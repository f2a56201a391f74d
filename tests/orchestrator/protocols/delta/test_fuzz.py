"""Whatever a runner sends, about a lease that lives or about none: an answer of the documents, and never a 500."""

import contextlib
import json

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.orchestrator.protocols.delta.messages import PATHS, WORDS, error_of, recorded

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
CODES = {400: "INVALID_REQUEST", 409: None}
NAMES = sorted(
    {name for word in (*WORDS, "note_heartbeat", "note_complete", "note_cancel_ack") for name in recorded(word)}
)

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = st.recursive(
    plain | st.sampled_from(["SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELED", "2026-01-04T08:00:20Z", "0001-01-01T00:00:00+23:59"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "type", "uri", "x"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
changes = st.dictionaries(st.sampled_from(NAMES), anything, max_size=3)


@pytest.mark.parametrize("word", [*WORDS, "note_heartbeat", "note_complete", "note_cancel_ack"])
def test_a_message_that_is_wrong_somewhere(held, word):
    @settings(
        max_examples=25, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip
    @given(changed=changes, left_out=st.sets(st.sampled_from(NAMES), max_size=2))
    def sent(changed, left_out):
        message = {k: v for k, v in (held.message(word) | changed).items() if k not in left_out}
        with undone():
            answered(held.caller.post(PATHS[recorded(word)["type"]], message))

    sent()


@pytest.mark.parametrize("path", PATHS.values())
def test_a_body_that_is_no_message(held, path):
    @settings(
        max_examples=25, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip
    @given(body=st.binary(max_size=200) | anything.map(encoded))
    def sent(body):
        with undone():
            answered(held.caller.post(path, body))

    sent()


def encoded(value) -> bytes:
    return json.dumps(value).encode()


@contextlib.contextmanager
def undone():
    """As if it had not been sent, so that each example finds a lease that lives."""
    with transaction.atomic() as _:
        transaction.get_connection().atomic_blocks[-1]._from_testcase = True  # the operations open one of their own
        yield
        transaction.set_rollback(True)


def answered(response) -> None:
    if response.status_code in {200, 204}:
        return
    assert response.status_code in CODES, response.content
    error_of(response, response.status_code, CODES[response.status_code] or response.json()["error"]["code"])
