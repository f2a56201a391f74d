"""The values of `shithub.event`, and the inputs of a manual start."""

import pytest

from runtime_jobs.workflows.document import DispatchInput, DispatchTrigger
from runtime_jobs.workflows.payloads import (
    MAX_INPUT,
    dispatch_payload,
    pull_request_payload,
    push_payload,
    resolve_inputs,
)

TRIGGER = DispatchTrigger(
    (
        DispatchInput("target", is_required=True),
        DispatchInput("note"),
        DispatchInput("level", "choice", "low", options=("low", "high")),
        DispatchInput("dry-run", "boolean"),
        DispatchInput("where", "environment", "staging"),
    )
)


def test_the_payloads_have_the_members_of_the_contract():
    assert push_payload(ref="r", before="b", after="a", commit_id="c", message="m", author="n") == {
        "ref": "r", "before": "b", "after": "a", "head_commit": {"id": "c", "message": "m", "author": "n"},
    }  # fmt: skip
    assert pull_request_payload(
        action="opened", number=3, title="t", head_ref="topic", head_sha="h", base_ref="main", base_sha="b", login="l"
    ) == {
        "action": "opened",
        "number": 3,
        "pull_request": {
            "title": "t",
            "head": {"ref": "topic", "sha": "h"},
            "base": {"ref": "main", "sha": "b"},
            "user": {"login": "l"},
        },
    }
    assert dispatch_payload({"a": "b"}) == {"inputs": {"a": "b"}}


def test_inputs_have_defaults():
    values, errors = resolve_inputs(TRIGGER, {"target": "x"})
    assert not errors
    assert values == {"target": "x", "note": "", "level": "low", "dry-run": "false", "where": "staging"}


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        ({}, "target", "required"),
        ({"target": ""}, "target", "required"),
        ({"target": "x", "other": "y"}, "other", "no such input"),
        ({"target": "x", "level": "middle"}, "level", "one of"),
        ({"target": "x", "dry-run": "yes"}, "dry-run", "true or false"),
        ({"target": "x", "note": "n" * (MAX_INPUT + 1)}, "note", str(MAX_INPUT)),
    ],
)
def test_a_wrong_input_is_named(given, name, message):
    _, errors = resolve_inputs(TRIGGER, given)
    assert list(errors) == [name]
    assert message in errors[name][0]
