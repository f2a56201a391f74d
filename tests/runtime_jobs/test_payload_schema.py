"""JSON Schemas of tenants: which are accepted, and that a check has a bounded cost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from runtime_jobs.specs.payload_schema import (
    KEYWORDS,
    MAX_ERRORS,
    MAX_SCHEMA_BYTES,
    payload_errors,
    schema_error,
)

IMAGE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["imageRef"],
    "properties": {"imageRef": {"$ref": "#/$defs/name"}, "pattern": {"type": "string"}},
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 20}},
}
DOUBLING = {
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)},
        "d30": {"type": "object"},
    },
    "$ref": "#/$defs/d0",
}


def test_a_schema_is_accepted_and_applied():
    assert schema_error(IMAGE) is None
    assert payload_errors(IMAGE, {"imageRef": "nginx:latest"}) == []
    assert payload_errors(IMAGE, {"imageRef": 1}) == ["#/imageRef: 1 is not of type 'string'"]
    assert payload_errors(IMAGE, {}) == ["#: 'imageRef' is a required property"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"pattern": "(a+)+$"}, "#/pattern: this keyword is not allowed"),
        ({"properties": {"a": {"items": {"patternProperties": {}}}}}, "patternProperties"),
        ({"anyOf": [{"format": "regex"}]}, "#/anyOf/0/format"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$ref": "https://evil.example/schema.json"}, "#/$ref: must be"),
        ({"$ref": "#"}, "#/$ref: must be"),
        ({"$ref": "#/$defs/a/b"}, "#/$ref: must be"),
        ({"$ref": "#/$defs/missing"}, "#/$ref: must be"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"$id": "https://evil.example/"}, "$id"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema: must be"),
        ({"type": "nothing"}, "#/type"),
        ({"properties": []}, "#/properties"),
        ({"enum": ["x" * MAX_SCHEMA_BYTES]}, "at most 65536 bytes"),
        ([], "Must be a JSON object"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_could_cost_or_reach_more_is_refused(schema, problem):
    assert problem in schema_error(schema)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (DOUBLING, {}),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, {}),
        ({"properties": {"list": {"items": {"enum": list(range(5_000))}}}}, {"list": [-1] * 30_000}),
        ({"anyOf": [{"properties": {"a": {"const": n}}} for n in range(1_000)]}, {"a": "x" * 200_000}),
        ({"items": {"type": "string"}, "properties": {"list": {"items": {"type": "string"}}}}, {"list": [1] * 100_000}),
    ],
    ids=["doubling", "endless", "enumeration", "long text", "many"],
)
def test_a_check_ends_soon(schema, payload):
    assert schema_error(schema) is None
    started = time.process_time()
    assert payload_errors(schema, payload)
    assert time.process_time() - started < 20, "the budget is not the time, but without one it is hours"


def test_at_most_a_few_errors():
    schema = {"properties": {"list": {"items": {"type": "string"}}}}
    assert len(payload_errors(schema, {"list": list(range(100))})) == MAX_ERRORS


def test_every_keyword_that_is_allowed_belongs_to_the_dialect():
    known = set(Draft202012Validator.VALIDATORS) | {"$schema", "$comment", "$defs", "title", "description"}
    known |= {"default", "examples", "deprecated", "then", "else", "minContains", "maxContains"}
    assert set(KEYWORDS) <= known


@given(
    st.dictionaries(
        st.sampled_from(["imageRef", "pattern", "x"]), st.none() | st.text(max_size=25) | st.integers(), max_size=3
    )
)
def test_a_check_agrees_with_the_library(payload):
    expected = Draft202012Validator(IMAGE).is_valid(payload)
    assert (payload_errors(IMAGE, payload) == []) == expected
