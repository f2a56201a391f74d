"""The jobs that a rerun of the failed ones executes, and the changes of a rerun."""

import pytest

from runtime_jobs.workflows.document import Workflow, WorkflowJob, WorkflowStep, WorkflowTriggers
from runtime_jobs.workflows.reruns import RunEdit, failed_and_dependent

NEEDS = {"build": (), "lint": (), "test": ("build",), "deploy": ("test", "lint"), "notify": ("deploy",)}


@pytest.mark.parametrize(
    ("failed", "chosen"),
    [
        ((), ()),
        (("notify",), ("notify",)),
        (("test",), ("test", "deploy", "notify")),
        (("lint",), ("lint", "deploy", "notify")),
        (("build", "lint"), tuple(NEEDS)),
        (("gone",), ()),
    ],
)
def test_failed_jobs_are_repeated_with_those_that_need_them(failed, chosen):
    assert failed_and_dependent(frozenset(failed), NEEDS) == frozenset(chosen)


WORKFLOW = Workflow(
    WorkflowTriggers(),
    (
        WorkflowJob("a", "linux", (WorkflowStep(run="x"),), env={"A": "1", "B": "2"}, timeout_minutes=5),
        WorkflowJob("b", "arm", (WorkflowStep(run="x"),)),
    ),
)


def test_an_edit_changes_all_jobs():
    edit = RunEdit(env={"B": "${{ github.sha }}"}, runs_on="big", timeout_minutes=30)
    a, b = edit.apply(WORKFLOW).jobs
    assert (a.runs_on, a.timeout_minutes, dict(a.env)) == ("big", 30, {"A": "1", "B": "${{ shithub.sha }}"})
    assert (b.runs_on, b.timeout_minutes, dict(b.env)) == ("big", 30, {"B": "${{ shithub.sha }}"})
    assert edit.as_json() == {"env": {"B": "${{ github.sha }}"}, "runs_on": "big", "timeout_minutes": 30}


def test_no_edit_changes_nothing():
    assert RunEdit().apply(WORKFLOW) == WORKFLOW
    assert not RunEdit()
    assert RunEdit(inputs={})


@pytest.mark.parametrize(
    ("edit", "member"),
    [
        (RunEdit(env={"1A": "x"}), "env"),
        (RunEdit(env={"SHITHUB_INPUT_0": "x"}), "env"),
        (RunEdit(env={"A": "\0"}), "env"),
        (RunEdit(env={"A": "${{ nothing.x }}"}), "env"),
        (RunEdit(env={"A": "${{"}), "env"),
        (RunEdit(env={f"A{n}": "x" for n in range(65)}), "env"),
        (RunEdit(runs_on=""), "runs_on"),
        (RunEdit(runs_on="a b"), "runs_on"),
        (RunEdit(timeout_minutes=0), "timeout_minutes"),
        (RunEdit(timeout_minutes=4321), "timeout_minutes"),
    ],
)
def test_a_wrong_edit_is_refused_by_name(edit, member):
    assert list(edit.validate()) == [member]
