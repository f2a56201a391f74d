"""Reruns: all jobs or the failed ones, with the old event, and with changes that are recorded."""

import pytest

from orchestrator.core.cause import Cause
from orchestrator.services import batches
from orchestrator.workflows import approval, reruns
from orchestrator.workflows.reruns import RerunRequest, RerunScope
from orchestrator.workflows.run_reads import state_of_run
from runtime_jobs.errors import Invalid, NotFinal
from runtime_jobs.models import Job, WorkflowEvent
from runtime_jobs.workflows.payloads import dispatch_payload
from runtime_jobs.workflows.reruns import RunEdit
from tests.factories import ALICE
from tests.workflow_runs import Runner, job_of, parsed, reread, started, states, workflow_text

pytestmark = pytest.mark.django_db

JOBS = {
    "build": None,
    "lint": None,
    "test": {"needs": "build"},
    "deploy": {"needs": "[test, lint]"},
    "notify": {"needs": "deploy", "if": "always()"},
}


def rerun(run, text=None, **changes):
    asked = RerunRequest(actor_name="bob", correlation_id="again", **changes)
    workflow = parsed(text or workflow_text(JOBS))
    return reruns.rerun_workflow(reread(run), workflow, asked, default_pool="shared-linux", actor=ALICE).run


def test_a_rerun_is_a_new_run_of_the_same_event():
    run, runner = started(JOBS, event_payload={"ref": "x"}), Runner()
    runner.run_all(test="failure")
    again = rerun(run, reason="the network was down")
    assert (again.parent, again.run_index, again.actor, again.reason) == (run, 2, "bob", "the network was down")
    assert (again.head_sha, again.head_ref, again.event, again.event_payload) == (
        run.head_sha, run.head_ref, run.event, {"ref": "x"},
    )  # fmt: skip
    assert again.trigger_id.startswith(f"rerun:{run.pk}:")
    assert again.batch.rerun_of == run.batch.batch_ulid
    assert sorted(runner.run_all()) == sorted(JOBS)
    assert (reread(again).conclusion, reread(run).conclusion) == ("success", "failure")
    assert rerun(run).pk != again.pk


def test_an_open_run_is_not_rerun():
    run, runner = started(JOBS), Runner()
    with pytest.raises(NotFinal):
        rerun(run)
    runner.claim_all()
    batches.cancel_batch(batch_ulid=run.batch.batch_ulid, actor=ALICE, deadline_seconds=30)
    with pytest.raises(NotFinal):
        rerun(run)
    for key in ("build", "lint"):
        runner.end(key, "cancelled")
    assert rerun(run).run_index == 2


def test_the_rerun_of_a_fork_s_run_that_nobody_approved_waits_for_an_approval():
    """A cancel is a refusal: a program that reruns canceled runs must not execute unread code."""
    run, runner = started(JOBS, from_fork=True, needs_approval=True), Runner()
    batches.cancel_batch(batch_ulid=run.batch.batch_ulid, actor=ALICE, deadline_seconds=30)
    again = rerun(run)
    assert (again.hold, again.needs_approval, again.from_fork) == ("approval", True, True)
    assert runner.claim() is None
    batches.cancel_batch(batch_ulid=again.batch.batch_ulid, actor=ALICE, deadline_seconds=30)
    third = rerun(again, scope=RerunScope.FAILED)
    assert third.hold == "approval"
    approval.approve_workflow_run(run_id=third.pk, cause=Cause(ALICE))
    assert sorted(runner.run_all(test="failure")) == ["build", "lint", "notify", "test"]
    fourth = rerun(third)  # the same commit was approved
    assert (fourth.hold, fourth.from_fork) == ("", True)
    assert sorted(runner.run_all()) == sorted(JOBS)
    assert rerun(fourth).hold == ""


def test_failed_jobs_are_rerun_with_those_that_need_them():
    run, runner = started(JOBS), Runner()
    assert runner.run_all(test="failure") == ["build", "lint", "test", "notify"]
    lint = job_of(run, "lint")
    again = rerun(run, scope=RerunScope.FAILED)
    assert states(again) == {"test": "queued", "deploy": "blocked", "notify": "blocked"}
    assert again.carried == {
        "build": {
            "job_id": job_of(run, "build").pk, "name": "build", "conclusion": "success", "has_succeeded": True,
            "needs": [],
        },
        "lint": {"job_id": lint.pk, "name": "lint", "conclusion": "success", "has_succeeded": True, "needs": []},
    }  # fmt: skip
    assert runner.run_all(deploy="failure") == ["test", "deploy", "notify"]
    assert reread(again).conclusion == "failure"
    third = rerun(again, scope=RerunScope.FAILED)
    assert set(third.carried) == {"build", "lint", "test"}
    assert third.carried["lint"]["job_id"] == lint.pk
    assert runner.run_all() == ["deploy", "notify"]
    assert reread(third).conclusion == "success"
    assert state_of_run(third).conclusion == "success"


def test_a_job_that_was_taken_over_counts_for_conditions():
    jobs = {
        "ok": None,
        "bad": None,
        "after": {"needs": "[ok, bad]", "if": "success()"},
        "skipped": {"if": "false"},
        "late": {"needs": "[skipped, bad]", "if": "always() && !failure()"},
    }
    run, runner = started(jobs), Runner()
    runner.run_all(bad="failure")
    assert states(run)["late"] == "canceled:condition_false"
    again = rerun(run, workflow_text(jobs), scope=RerunScope.FAILED)
    assert states(again) == {"bad": "queued", "after": "blocked", "late": "blocked"}
    assert again.carried["skipped"]["conclusion"] == "skipped"
    assert runner.run_all() == ["bad", "after", "late"]
    assert reread(again).conclusion == "success"


def test_jobs_of_a_canceled_run_are_rerun():
    run, runner = started(JOBS), Runner()
    runner.claim_all()
    runner.end("lint")
    batches.cancel_batch(batch_ulid=run.batch.batch_ulid, actor=ALICE, deadline_seconds=30)
    runner.end("build", "cancelled")
    again = rerun(run, scope=RerunScope.FAILED)
    assert list(again.carried) == ["lint"]
    assert runner.run_all() == ["build", "test", "deploy", "notify"]


def test_without_a_failure_there_is_nothing_to_rerun():
    run = started(JOBS)
    Runner().run_all()
    with pytest.raises(Invalid) as caught:
        rerun(run, scope=RerunScope.FAILED)
    assert list(caught.value.errors) == ["only"]
    assert Job.objects.count() == len(JOBS)


DISPATCH = workflow_text(
    {"a": {"env": "{T: '${{ shithub.event.inputs.target }}'}"}},
    on="{workflow_dispatch: {inputs: {target: {default: x}}}}",
)


def test_an_edit_changes_the_new_run_and_is_recorded():
    payload = dispatch_payload({"target": "old"})
    run = started(DISPATCH, event=WorkflowEvent.DISPATCH, event_payload=payload)
    Runner().run_all()
    edit = RunEdit(inputs={"target": "new"}, env={"E": "1"}, runs_on="big", timeout_minutes=3)
    again = rerun(run, DISPATCH, edit=edit, reason="larger machine")
    assert again.event_payload == {"inputs": {"target": "new"}}
    assert again.edits == {"inputs": {"target": "new"}, "env": {"E": "1"}, "runs_on": "big", "timeout_minutes": 3}
    assert (again.actor, again.reason) == ("bob", "larger machine")
    job = job_of(again, "a")
    assert (job.requirements, job.timeout_seconds, job.spec["env"]["E"]) == (["big"], 180, "1")
    assert reread(run).event_payload == payload


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (RunEdit(inputs={"other": "x"}), "inputs.other"),
        (RunEdit(runs_on="a b"), "runs_on"),
        (RunEdit(env={"A": "${{"}), "env"),
        (RunEdit(timeout_minutes=4000), "jobs.a.timeout-minutes"),
    ],
)
def test_a_wrong_edit_is_refused(edit, name):
    run = started(DISPATCH, event=WorkflowEvent.DISPATCH, event_payload=dispatch_payload({"target": "x"}))
    Runner().run_all()
    with pytest.raises(Invalid) as caught:
        rerun(run, DISPATCH, edit=edit)
    assert list(caught.value.errors) == [name]


def test_only_a_manual_start_has_inputs():
    run = started(JOBS)
    Runner().run_all()
    with pytest.raises(Invalid) as caught:
        rerun(run, edit=RunEdit(inputs={}))
    assert list(caught.value.errors) == ["inputs"]
