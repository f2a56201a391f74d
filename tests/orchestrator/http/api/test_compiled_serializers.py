"""The compiled form of a serializer and the serializer itself accept the same bodies and return the same data.

`PROOF_BODIES` has the number of random bodies of each serializer.
"""

import os
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

import orchestrator.protocols.delta.runs.serializers
import orchestrator.protocols.native.jobs.serializers
import orchestrator.protocols.native.leases.serializers
import orchestrator.protocols.native.limits.serializers  # noqa: F401 defines serializers
from orchestrator.http.api import fields
from orchestrator.http.api.compiled_serializers import NotCompiled
from orchestrator.http.api.fields import StrictCharField, StrictSerializer, parse
from orchestrator.protocols.ingest.serializers import TruncatedList
from orchestrator.protocols.native.jobs.serializers import (
    BulkSubmitInput,
    ConcurrencyInput,
    SubmitAnyJobInput,
    SubmitRuntimeJobInput,
    TriggerInput,
)
from tests.factories import SUBMIT_ANY_BODY, SUBMIT_BODY

TEXTS = ["", " ", "a", "web", "é", "\u202e", "tab\t", "nul\0", "\ud800", "x" * 300, "make test", "3" * 40, "../up", "*"]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 7.0, 300, 2**31, 2**63, 1e300]),
    st.sampled_from(TEXTS),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just(["a"]),
    st.just({"a": "b"}),
)


def every_serializer() -> list[type[StrictSerializer]]:
    """Return the serializers that requests use. `TruncatedList` is a base: its subclasses add the `items` it reads."""
    found, rest = [], [StrictSerializer]
    while rest:
        below = rest.pop().__subclasses__()
        rest += below
        found += [one for one in below if one.__module__.startswith("orchestrator.") and one is not TruncatedList]
    return sorted(set(found), key=lambda one: (one.__module__, one.__qualname__))


def value_of(field: Any) -> st.SearchStrategy[Any]:
    """Return values for a field: mostly of its kind, so that many bodies are valid, and some of any other kind."""
    likely: st.SearchStrategy[Any] = JUNK
    if isinstance(field, serializers.Serializer):
        likely = body_of(field)
    elif isinstance(field, serializers.ListField):
        likely = st.lists(value_of(field.child), max_size=3)
    elif isinstance(field, serializers.DictField):
        likely = st.dictionaries(st.sampled_from(["A", "b", "1"]), value_of(field.child), max_size=2)
    elif isinstance(field, serializers.ChoiceField):
        likely = st.sampled_from(sorted(field.choices))
    elif isinstance(field, serializers.IntegerField):
        likely = st.sampled_from([0, 1, 5, 300, 10_000])
    elif isinstance(field, serializers.BooleanField):
        likely = st.booleans()
    elif isinstance(field, StrictCharField):
        patterns = [rule.regex.pattern for rule in field.validators if hasattr(rule, "regex")]
        likely = st.from_regex(patterns[0]) if patterns else st.sampled_from(TEXTS)
    return st.one_of(likely, likely, likely, likely, JUNK)


def body_of(serializer: serializers.Serializer) -> st.SearchStrategy[Any]:
    required, optional = {}, {"unknown": st.none()}
    for name, field in serializer.fields.items():
        (required if field.required else optional)[name] = value_of(field)
    del optional["unknown"]
    complete = st.fixed_dictionaries(required, optional=optional)
    return st.one_of(complete, complete, complete, complete.flatmap(broken))


def broken(body: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return the body without one of its members, or with an unknown one."""
    without = [{name: value for name, value in body.items() if name != left_out} for left_out in body]
    return st.sampled_from([*without, body | {"unknown": 1}])


def every_field() -> dict[str, serializers.Field]:
    """Return each field of each serializer by its path, those of lists and dictionaries included."""
    found: dict[str, serializers.Field] = {}

    def visit(path: str, field: Any) -> None:
        found[path] = field
        for name, inner in field.fields.items() if isinstance(field, serializers.Serializer) else ():
            visit(f"{path}.{name}", inner)
        if isinstance(field, serializers.ListField | serializers.DictField):
            visit(f"{path}[]", field.child)

    for serializer in every_serializer():
        visit(f"{serializer.__module__}.{serializer.__name__}", serializer())
    return found


def edges_of(field: Any) -> list[Any]:
    """Return values of each kind, and those on both sides of the field's limits."""
    found: list[Any] = [*TEXTS, None, True, False, 0, 1, -1, 7.0, 300, 2**31, 2**63, [], {}, ["a"], {"a": "b"}, [{}]]
    for rule in field.validators:
        if isinstance(limit := getattr(rule, "limit_value", None), int):
            of_length = [limit, limit + 1] if limit < 20_000 else []
            found += [limit - 1, limit, limit + 1, *("x" * n for n in of_length), *(["x"] * n for n in of_length)]
    return found + list(getattr(field, "choices", ()))


def outcome_of(act: Any, value: Any) -> tuple[str, str]:
    try:
        return "accepted", repr(act(value))
    except (ValidationError, serializers.SkipField, NotCompiled):
        return "refused", ""


def outcome(serializer: type[StrictSerializer], body: Any) -> tuple[str, Any]:
    try:
        return "accepted", parse(serializer, body)
    except ValidationError as error:
        return "refused", error.get_full_details()


def not_compiled(_serializer: type[StrictSerializer]) -> Any:
    def refuse(_body: Any) -> Any:
        raise NotCompiled

    return refuse


def by_serializer(serializer: type[StrictSerializer], body: Any) -> tuple[str, Any]:
    """Return the outcome of the serializer and of all that it calls, without compiled forms."""
    with patch.object(fields, "_compiled", not_compiled):
        return outcome(serializer, body)


@pytest.mark.parametrize("serializer", every_serializer(), ids=lambda one: one.__name__)
@given(data=st.data())
@settings(
    max_examples=int(os.environ.get("PROOF_BODIES", "20")), deadline=None, suppress_health_check=list(HealthCheck)
)
def test_both_forms_agree(serializer: type[StrictSerializer], data: st.DataObject):
    body = data.draw(value_of(serializer()))
    expected = by_serializer(serializer, body)
    assert repr(outcome(serializer, body)) == repr(expected)
    try:
        compiled = fields._compiled(serializer)(body)
    except NotCompiled:
        return
    assert repr(("accepted", compiled)) == repr(expected)


def test_each_field_accepts_the_same_values():
    """A valid body with one wrong value is rare among random ones, so each field meets its edges by itself."""
    for path, field in every_field().items():
        compiled = fields.compile_field(field, fields._COMPILERS, strict=fields.StrictSerializer)
        for value in edges_of(field):
            kind, found = outcome_of(compiled, value)
            if kind == "accepted" or not isinstance(value, str):
                with patch.object(fields, "_compiled", not_compiled):
                    assert (kind, found) == outcome_of(field.run_validation, value), (path, value)


@pytest.mark.parametrize(
    ("serializer", "body"),
    [
        (SubmitAnyJobInput, SUBMIT_ANY_BODY),
        (SubmitAnyJobInput, SUBMIT_ANY_BODY | {"priority": None, "concurrency": {"key": "deploy"}, "depends_on": []}),
        (SubmitRuntimeJobInput, SUBMIT_BODY),
        (BulkSubmitInput, {"jobs": [{}, SUBMIT_ANY_BODY]}),
        (TriggerInput, {"kind": "manual", "actor": "José"}),
        (ConcurrencyInput, {"key": "k", "when_busy": "drop_new"}),
    ],
)
def test_ordinary_bodies_never_reach_the_serializer(serializer, body, monkeypatch):
    expected = by_serializer(serializer, body)
    monkeypatch.setattr(StrictSerializer, "run_validation", lambda *_: pytest.fail("not compiled"))
    assert ("accepted", parse(serializer, body)) == expected


def test_a_field_with_rules_of_its_own_validates_itself():
    class Shouting(StrictCharField):
        def to_internal_value(self, data: Any) -> str:
            return str(super().to_internal_value(data)).upper()

    class Sample(StrictSerializer):
        word = Shouting(max_length=3)

        def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
            if attrs["word"] == "BAD":
                raise serializers.ValidationError("Not this one.")
            return attrs

    assert parse(Sample, {"word": "abc"}) == {"word": "ABC"}
    for word in ("bad", "long"):
        with pytest.raises(ValidationError):
            parse(Sample, {"word": word})
