"""The hashes of events are made of the same bytes whichever library writes them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runtime_jobs.events import Actor, _canonical, build_event, event_hash
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


def as_ever(row: dict[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@given(row=st.dictionaries(TEXT, VALUES, max_size=5))
@example(row={"a": 1e-05, "b": 1e22, "c": -0.0, "d": 0.1})
@example(row={"é": 1, "z": 2, "\U0001f600": 3, "\uffff": 4, "\x7f\u2028": '"\\/'})
@example(row={"deep": [{"er": [2**64, 5e-324]}], "pair": ("a", 1.5)})
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_the_bytes_are_those_of_json(row):
    assert _canonical(row, row) == as_ever(row)
    assert _canonical({"n": 1, "payload": row}, row) == as_ever({"n": 1, "payload": row})


def test_the_hash_of_an_event_is_the_one_of_before():
    job = Job(job_ulid="rtj_1", org_slug="acme", job_type="steps", correlation_id="é", payload_digest="0" * 64)
    now = datetime(2026, 11, 22, 9, tzinfo=UTC)
    actor = Actor("client", "alice")
    event = build_event(
        job, "job.queued", created_at=now, actor=actor, to_state=JobState.QUEUED, depends_on=["a"], seconds=1e-05
    )
    event.event_ulid = "evt_1"
    event.payload_json["input_sha256"] = event.payload_json.pop("payload_digest")  # the name of that release
    assert event_hash(event) == "39463cfbdc8c8e95ee042e7d5e95aba2cf83e77365728906993b32db7fb410c9"


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), object(), b"x", {1}])
def test_what_json_cannot_write_is_refused(value):
    with pytest.raises(TypeError):
        _canonical({"value": value}, value)
