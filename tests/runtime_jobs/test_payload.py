"""Types with a payload: bounds, digest, columns."""

import hashlib
import json
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, PAYLOAD_TYPES, PayloadSpec, configured_policy
from runtime_jobs.specs.payload import (
    MAX_INTEGER,
    MAX_PAYLOAD_BYTES,
    payload_digest,
    validate_cursors,
    validate_payload,
)

SPEC = PayloadSpec(
    "scan", {"imageRef": "nginx:latest", "options": {}}, timeout_seconds=60, cursors={"advisory": "cursor-abc"}
)
RUN = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-MAX_INTEGER, MAX_INTEGER)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé😀", max_size=3), inner, max_size=4),
    max_leaves=12,
)


def test_the_digest_is_that_of_rfc_8785():
    assert payload_digest({"b": 1.0, "a": "é", "€": [1e21, 1e-7, 0.1]}) == (
        hashlib.sha256('{"a":"é","b":1,"€":[1e+21,1e-7,0.1]}'.encode()).hexdigest()
    )


@pytest.mark.parametrize("job_type", PAYLOAD_TYPES)
def test_each_type_has_the_same_rules(job_type):
    kind, policy = JOB_TYPES[job_type], configured_policy(job_type)
    assert kind.has_payload
    assert (policy.needs_ingest, policy.complete_beats_cancel, policy.automatic_retries) == (False, False, 1)


def test_the_columns_contain_the_specification():
    job = Job(**SPEC.columns(), root_job_ulid=public_id_of("rtj", RUN))
    assert JOB_TYPES["scan"].from_job(job) == SPEC
    assert JOB_TYPES["scan"].from_job(job).digest == job.payload_digest == SPEC.digest
    leased = JOB_TYPES["scan"].serialize_for_lease(job, {"least_isolation": "none", "egress": []})
    assert leased["request"]["payload"] == SPEC.payload
    assert leased["request"]["cursors"] == {"advisory": "cursor-abc"}
    assert leased["request"]["run_id"] == str(RUN)
    assert leased["request"]["payload_digest"] == f"sha256:{SPEC.digest}"


@pytest.mark.django_db
@given(VALUES)
def test_the_digest_of_what_the_database_returns_is_the_same(value):
    payload = {"value": value}
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb::text", [json.dumps(payload)])
        stored = json.loads(cursor.fetchone()[0])
    assert payload_digest(stored) == payload_digest(payload)


def test_bounds_of_the_payload():
    room = MAX_PAYLOAD_BYTES - len('{"text":""}')
    assert validate_payload({"text": "x" * room}) is None
    assert "at most 262144 bytes" in validate_payload({"text": "x" * (room + 1)})
    assert validate_payload({"number": MAX_INTEGER}) is None
    assert "Send a larger one as a string" in validate_payload({"list": [{"number": MAX_INTEGER + 1}]})


def test_bounds_of_cursors():
    assert validate_cursors({f"feed-{number}": "x" for number in range(32)}) is None
    assert "33 cursors" in validate_cursors({f"feed-{number}": "x" for number in range(33)})
    assert "must match" in validate_cursors({"a feed": "x"})
