"""The comparison of two manifests, which is pure."""

import ast
import copy
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evidence import replay_comparison
from orchestrator.evidence.replay_comparison import (
    MISSING,
    ContradictedVerdict,
    Difference,
    compare_manifests,
    confirm_record,
    differences,
)

MANIFEST = {
    "inputs": {"payloadDigest": "sha256:1", "cursors": {}},
    "environment": {"engine": "bubblewrap", "workerId": "wrk_1"},
    "outputs": {"exitCode": 0, "steps": [0, 0], "artifacts": {"a/b~c.txt": {"digest": "sha256:2", "bytes": 5}}},
    "inconclusive": [],
    "logs": {"bytes": 3, "digest": "sha256:3"},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def changed(*path, value):
    found = copy.deepcopy(MANIFEST)
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return found


def test_equal_manifests_match():
    found = compare_manifests(MANIFEST, copy.deepcopy(MANIFEST))
    assert (found.verdict, found.difference, found.reasons, found.notes) == ("match", None, (), ())


def test_the_first_difference_is_named_by_its_path():
    found = compare_manifests(MANIFEST, changed("outputs", "artifacts", "a/b~c.txt", "digest", value="sha256:9"))
    assert found.verdict == "diverged"
    assert found.difference == Difference("/outputs/artifacts/a~1b~0c.txt/digest", "sha256:2", "sha256:9")


@pytest.mark.parametrize("name", ["environment", "logs"])
def test_environment_and_logs_are_notes_and_decide_nothing(name):
    member = next(iter(MANIFEST[name]))
    found = compare_manifests(MANIFEST, changed(name, member, value="other"))
    assert (found.verdict, found.difference) == ("match", None)
    assert [note.path for note in found.notes] == [f"/{name}/{member}"]


def test_a_caveat_makes_every_outcome_unverifiable():
    for found in (MANIFEST, changed("outputs", "exitCode", value=1)):
        compared = compare_manifests(MANIFEST, found, caveats=["It had access to the network."])
        assert (compared.verdict, compared.reasons) == ("unverifiable", ("It had access to the network.",))
    assert compared.difference.path == "/outputs/exitCode"  # reported all the same


def test_what_is_inconclusive_or_has_other_inputs_is_unverifiable():
    for expected, found, reason in (
        (MANIFEST, changed("inconclusive", value=["It was canceled."]), "Of the replay: It was canceled."),
        (changed("inconclusive", value=["No digest."]), MANIFEST, "Of the job: No digest."),
        (MANIFEST, changed("inputs", "payloadDigest", value="sha256:8"), "The inputs differ at /inputs/payloadDigest."),
    ):
        compared = compare_manifests(expected, found)
        assert (compared.verdict, compared.reasons) == ("unverifiable", (reason,))


OTHER = changed("outputs", "exitCode", value=1)
EXIT_CODE = {"path": "/outputs/exitCode", "expected": 0, "found": 1}
RECORD = {"jobId": "x", "caveats": [], "expected": MANIFEST, "found": MANIFEST, "verdict": "match", "difference": None}


class TestRecords:
    @pytest.mark.parametrize(
        "record",
        [
            RECORD,
            RECORD | {"found": OTHER, "verdict": "diverged", "difference": EXIT_CODE},
            RECORD | {"caveats": ["network"], "verdict": "unverifiable"},
        ],
    )
    def test_a_verdict_is_confirmed_from_its_manifests(self, record):
        assert confirm_record(record).verdict == record["verdict"]

    def test_without_a_verdict_there_is_nothing_to_confirm(self):
        assert confirm_record(RECORD | {"found": None, "verdict": None}) is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"found": OTHER},
            {"expected": OTHER},
            {"verdict": "diverged"},
            {"verdict": "unverifiable"},
            {"caveats": ["network"]},
            {"difference": EXIT_CODE},
            {"found": OTHER, "verdict": "diverged", "difference": EXIT_CODE | {"found": 2}},
        ],
    )
    def test_a_changed_record_is_refused(self, changes):
        with pytest.raises(ContradictedVerdict):
            confirm_record(RECORD | changes)


def test_missing_members_and_items_are_differences():
    found = list(differences({"a": None, "b": [1, 2]}, {"b": [1]}))
    assert found == [Difference("/a", None, MISSING), Difference("/b/1", 2, MISSING)]


def test_true_is_not_one():
    assert [one.path for one in differences({"a": True}, {"a": 1})] == ["/a"]


@given(VALUES)
def test_a_value_has_no_difference_from_itself(value):
    assert list(differences(value, copy.deepcopy(value))) == []


@given(VALUES, VALUES)
def test_two_values_without_a_difference_are_equal(first, second):
    assert (list(differences(first, second)) == []) == (repr(_sorted(first)) == repr(_sorted(second)))


def _sorted(value):
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value


def test_it_imports_the_standard_library_only():
    tree = ast.parse(Path(replay_comparison.__file__).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
