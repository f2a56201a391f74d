"""Operations on workflow runs that meet: cancel, end, approval, start and rerun. One order wins, and the audit is empty."""

import threading
from functools import partial

import pytest
from django.db import connection

from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.services import batches
from orchestrator.workflows import approval, reruns, workflow_end
from orchestrator.workflows.reruns import RerunRequest
from orchestrator.workflows.run_reads import state_of_run
from orchestrator.workflows.runs import start_workflow_run
from runtime_jobs.errors import AlreadyFinal, IdempotencyConflict, LifecycleError, ResourceConflict
from runtime_jobs.models import Batch, IdempotencyKey, Job, OperatorEvent, WorkflowRun
from runtime_jobs.states import FINAL_STATES
from tests.factories import ALICE, OPERATOR
from tests.orchestrator.services.test_races import together
from tests.suite_functions import audit_findings
from tests.workflow_runs import Runner, job_of, parsed, repository, request, reread, started, states, workflow_text

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 6
GROUP = {"concurrency": "deploy"}
CANCELING = {"concurrency": "{group: deploy, cancel-in-progress: true}"}
JOBS = {"a": None, "b": {"needs": "a"}}


@pytest.fixture(autouse=True)
def audited():
    """Check the invariants after each test."""
    yield
    assert audit_findings(chains=True) == []


def cancel(run, actor=ALICE):
    return batches.cancel_batch(batch_ulid=run.batch.batch_ulid, actor=actor, deadline_seconds=30)


def approve(run, actor):
    return approval.approve_workflow_run(run_id=run.pk, cause=Cause(actor))


def start(asked):
    return start_workflow_run(asked, default_pool="shared-linux", actor=ALICE)


def rerun(run, key=None, reason=""):
    """Run a run again; `key`: with this idempotency key."""
    asked = RerunRequest(actor_name="bob", correlation_id="again", reason=reason)
    idempotency = None if key is None else IdempotentRequest("client:bob", f"rerun {run.pk}", key, reason or "same")
    workflow = parsed(workflow_text(JOBS))
    return reruns.rerun_workflow(
        reread(run), workflow, asked, default_pool="shared-linux", actor=ALICE, idempotency=idempotency
    )


def is_recorded(run):
    """Whether the stored conclusion of an ended run is that of its jobs."""
    workflow_end.settle_pending_runs(limit=100)  # the process that lost the race may have left it to housekeeping
    found = reread(run)
    assert not Job.objects.filter(batch_id=run.batch_id).exclude(state__in=FINAL_STATES).exists()
    return found.conclusion is not None and found.conclusion == state_of_run(found).conclusion and found.hold == ""


# --- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_cancel_and_the_end_of_the_last_job_one_decides_the_conclusion(_round):
    run, runner = started({"a": None}), Runner()
    runner.claim()
    ended, canceled = together(partial(runner.end, "a"), partial(cancel, run))
    assert not isinstance(ended, LifecycleError)
    assert is_recorded(run)
    assert reread(run).conclusion == "success"  # a completion beats the request to cancel
    if isinstance(canceled, AlreadyFinal):
        assert job_of(run, "a").cancel_requested_at is None
    else:  # the request is stored, also where the job ended while the cancel waited for its lock
        assert reread(run).batch.cancel_requested_at is not None
        assert canceled.accepted == (job_of(run, "a").cancel_requested_at is not None)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_run_that_is_canceled_while_it_is_settled_has_one_end(_round):
    run, runner = started(JOBS), Runner()
    runner.claim()
    together(partial(runner.end, "a"), partial(cancel, run), partial(workflow_end.settle_run, batch_id=run.batch_id))
    if states(run)["b"] == "queued":  # the cancel came first or not at all
        pytest.fail("a canceled run has a queued job")
    assert is_recorded(run)
    assert reread(run).conclusion == "cancelled"


def test_a_cancel_between_lock_and_decision_of_the_settlement_is_settled(monkeypatch):
    """The settlement has read the jobs of the run as open when the cancel ends them, and stores nothing."""
    run = started(JOBS)
    read, canceled = workflow_end.job_ends, []

    def read_then_cancel(of):
        found = read(of)
        if not canceled:
            canceled.append(threading.Thread(target=lambda: (cancel(run), connection.close())))
            canceled[0].start()
            until_waiting_or_done(canceled[0])
        return found

    monkeypatch.setattr(workflow_end, "job_ends", read_then_cancel)
    workflow_end.settle_run(batch_id=run.batch_id)
    canceled[0].join(60)
    assert reread(run).conclusion == "cancelled"
    assert is_recorded(run)


def until_waiting_or_done(thread):
    while thread.is_alive():
        with connection.cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
            if cursor.fetchone()[0]:
                return
        thread.join(0.02)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_waiting_run_that_is_canceled_while_it_is_released_keeps_no_later_one_waiting(_round):
    of, runner = repository(), Runner()
    started({"a": None}, of, top=GROUP)
    runner.claim()
    second = started({"b": None}, of, top=GROUP)
    third = started({"c": None}, of, top=GROUP)
    together(partial(runner.end, "a"), partial(cancel, second))
    assert is_recorded(second)
    assert states(second) == {"b": "canceled:batch_canceled"}
    assert states(third) == {"c": "queued"}
    assert runner.run_all() == ["c"]


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_run_that_is_superseded_while_it_is_canceled_ends_once(_round):
    of = repository()
    first = started({"a": None}, of, top=CANCELING)
    asked = request(workflow_text({"b": None}, **CANCELING), of)
    together(partial(start, asked), partial(cancel, first))
    assert is_recorded(first)
    assert reread(first).conclusion == "cancelled"
    reason = job_of(first, "a").cancel_reason
    assert Batch.objects.get(pk=first.batch_id).cancel_reason == reason  # the batch has the reason of its job
    assert Runner().run_all() == ["b"]


# --- approval ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_two_approvals_the_first_one_is_recorded(_round):
    run, runner = started(JOBS, needs_approval=True, from_fork=True), Runner()
    found = together(partial(approve, run, ALICE), partial(approve, run, OPERATOR))
    event = OperatorEvent.objects.get()
    assert {one.approved_by for one in found} == {str(event.actor)}
    assert runner.run_all() == ["a", "b"]
    assert is_recorded(run)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_an_approval_and_a_cancel_no_job_survives(_round):
    run = started({"a": None, "b": {"if": "always()"}}, needs_approval=True)
    together(partial(approve, run, OPERATOR), partial(cancel, run))
    assert is_recorded(run)
    assert set(states(run).values()) <= {"canceled:batch_canceled"}


def test_a_run_that_has_ended_is_not_approved_before_its_end_is_recorded(monkeypatch):
    """An approval would let it cancel the runs of its group, although it has no job to execute."""
    of = repository()
    monkeypatch.setattr(workflow_end, "settle_run", lambda **_: [])
    stranger = started({"a": None}, of, top=CANCELING, needs_approval=True)
    cancel(stranger)
    own = started({"b": None}, of, top=CANCELING)
    with pytest.raises(ResourceConflict, match="has ended"):
        approve(stranger, OPERATOR)
    assert states(own) == {"b": "queued"}
    monkeypatch.undo()
    assert is_recorded(stranger)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_two_runs_of_a_group_that_are_approved_at_once_one_begins(_round):
    of, runner = repository(), Runner()
    runs = [started({"a": None}, of, top=GROUP, needs_approval=True) for _ in range(2)]
    together(*[partial(approve, run, OPERATOR) for run in runs])
    assert sorted(reread(run).hold for run in runs) == ["", "concurrency"]
    assert runner.run_all() == ["a", "a"]
    assert all(is_recorded(run) for run in runs)


def test_an_approval_waits_for_the_one_that_has_the_lock(monkeypatch):
    """The second one has read the run as waiting before the first one has approved it."""
    run = started({"a": None}, needs_approval=True)
    lock, second = approval.lock_repository, []

    def first_approves(pk):
        if not second:
            second.append(threading.Thread(target=lambda: (approve(run, OPERATOR), connection.close())))
            second[0].start()
            second[0].join(60)
        return lock(pk)

    monkeypatch.setattr(approval, "lock_repository", first_approves)
    assert approve(run, ALICE).approved_by == str(OPERATOR)
    assert OperatorEvent.objects.count() == 1


# --- rerun ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def failed():
    """A run that has failed."""
    run = started(JOBS)
    Runner().run_all(a="failure")
    return run


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_reruns_with_one_key_start_one_run(failed, _round):
    found = together(*[partial(rerun, failed, "k") for _ in range(4)])
    assert len({one.run.pk for one in found}) == 1
    assert sorted(one.replayed for one in found) == [False, True, True, True]
    assert WorkflowRun.objects.filter(parent=failed).count() == 1
    assert IdempotencyKey.objects.count() == 1


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_reruns_with_two_keys_start_two_runs_with_numbers_without_gaps(failed, _round):
    found = together(*[partial(rerun, failed, key) for key in ("k1", "k2")])
    assert sorted(one.run.run_index for one in found) == [2, 3]
    assert not any(one.replayed for one in found)
    assert {one.run.parent_id for one in found} == {failed.pk}


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_different_reruns_with_one_key_are_one_run_and_a_conflict(failed, _round):
    found = together(*[partial(rerun, failed, "k", reason) for reason in ("flaky", "network")])
    assert sorted(isinstance(one, IdempotencyConflict) for one in found) == [False, True]
    assert WorkflowRun.objects.filter(parent=failed).count() == 1


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_rerun_that_meets_the_cancel_of_its_run_starts_after_it_or_not_at_all(_round):
    run = started(JOBS)
    again, _ = together(partial(rerun, run), partial(cancel, run))
    assert is_recorded(run)
    if isinstance(again, LifecycleError):
        assert again.code == "not_final"
        assert WorkflowRun.objects.count() == 1
    else:
        assert states(again.run) == {"a": "queued", "b": "blocked"}


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_run_that_is_rerun_and_superseded_at_once_leaves_one_run_of_the_group(_round):
    of = repository()
    text = workflow_text(JOBS, **CANCELING)
    old = start(request(text, of)).run
    Runner().run_all()
    asked = RerunRequest(actor_name="bob", correlation_id="again")

    def again():
        return reruns.rerun_workflow(reread(old), parsed(text), asked, default_pool="shared-linux", actor=ALICE)

    together(again, partial(start, request(text, of)))
    open_runs = [run for run in WorkflowRun.objects.order_by("pk") if state_of_run(run).conclusion is None]
    assert [run.run_index for run in open_runs] == [3]
    assert Runner().run_all() == ["a", "b"]
