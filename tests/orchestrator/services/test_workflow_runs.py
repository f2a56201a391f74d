"""Workflow runs: started once, jobs in the order of their needs, conditions decided, groups, approval and conclusion."""

import threading
from functools import partial

import pytest
from django.db import connection

from orchestrator.core.cause import Cause
from orchestrator.core.counters import CONCURRENCY_QUEUED
from orchestrator.selectors.pending_reasons.service import pending_for
from orchestrator.services import batches, worker_state
from orchestrator.services.batches import state_of
from orchestrator.workflows import approval, reruns, runs, workflow_end
from orchestrator.workflows import runs as workflow_runs
from orchestrator.workflows.run_reads import RunStatus, run_of_job, state_of_run
from runtime_jobs.batch_state import BatchState
from runtime_jobs.errors import Invalid, NotFound, ProjectNotEnabled, ResourceConflict, WorkflowRejected
from runtime_jobs.models import Dependency, Job, JobStep, OperatorEvent, WorkflowEvent, WorkflowRun
from runtime_jobs.models.secrets import Variable
from runtime_jobs.states import CancelReason, FailureReason
from tests.factories import ALICE, COMMIT, OPERATOR, PlanFactory, ProjectFactory
from tests.orchestrator.services.test_races import together
from tests.workflow_runs import FILE, Runner, job_of, repository, request, reread, started, states, workflow_text

pytestmark = pytest.mark.django_db

CHAIN = {"build": None, "test": {"needs": "build"}, "deploy": {"needs": "[test]"}}


def start(asked):
    return runs.start_workflow_run(asked, default_pool="shared-linux", actor=ALICE)


def canceled(run):
    return batches.cancel_batch(batch_ulid=run.batch.batch_ulid, actor=ALICE, deadline_seconds=30)


# --- start ------------------------------------------------------------------------------------------------------------


def test_a_run_is_a_batch_with_jobs_and_steps():
    text = workflow_text(
        {
            "build": {
                "name": "Build it",
                "env": "{A: x}",
                "timeout_minutes": "10",
                "steps": "[{uses: actions/checkout@v4, with: {fetch-depth: 0}}, {id: t, name: T, run: make, if: failure()}]",
            }
        },
        name="CI",
        env="{A: y, B: z}",
        permissions="{contents: read}",
    )
    run = started(text, actor_name="al ice'; rm", event_payload={"ref": "r"})
    assert (run.run_index, run.workflow_file, run.workflow_name, run.head_sha) == (1, FILE, "CI", COMMIT)
    assert (run.actor, run.conclusion, run.hold, run.job_keys) == ("al-ice---rm", None, "", ["build"])
    batch = run.batch
    assert (batch.org_slug, batch.project_slug, batch.git_commit) == (
        run.repository.project.organization.slug, "web", COMMIT,
    )  # fmt: skip
    assert (batch.trigger_kind, batch.trigger_actor) == ("push", "al-ice---rm")
    job = job_of(run, "build")
    assert (job.job_type, job.state, job.timeout_seconds, job.requirements) == ("actions", "queued", 600, ["linux"])
    assert job.spec["env"] == {"A": "x", "B": "z"}
    assert job.spec["permissions"] == {"per": {"contents": "read"}}
    assert job.automatic_retries == 0
    checkout, test = JobStep.objects.filter(job=job).order_by("index")
    assert (checkout.uses, checkout.with_values, checkout.status) == (
        "actions/checkout@v4",
        {"fetch-depth": "0"},
        "queued",
    )
    assert (test.step_id, test.name, test.run, test.condition) == ("t", "T", "make", "failure()")
    assert run_of_job(job) == run


def test_runs_of_a_repository_are_numbered():
    first, other = repository(), repository(name="other")
    assert [started({"a": None}, of).run_index for of in (first, first, other, first)] == [1, 2, 1, 3]


def test_an_event_starts_a_file_once():
    of = repository()
    asked = request(workflow_text({"a": None}), of, trigger_id="push:x")
    first, again = start(asked), start(asked)
    assert (first.run, first.replayed, again.replayed) == (again.run, False, True)
    assert Job.objects.count() == 1
    other_file = request(workflow_text({"a": None}), of, trigger_id="push:x", workflow_file=".shithub/workflows/b.yml")
    assert not start(other_file).replayed
    assert not start(request(workflow_text({"a": None}), repository(name="other"), trigger_id="push:x")).replayed


@pytest.mark.django_db(transaction=True)
def test_an_event_that_arrives_twice_at_once_starts_one_run():
    asked = request(workflow_text(CHAIN), trigger_id="push:x")
    outcomes = together(*[lambda: start(asked)] * 6)
    assert sorted(outcome.replayed for outcome in outcomes) == [False] + [True] * 5
    assert len({outcome.run.pk for outcome in outcomes}) == 1
    assert Job.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_concurrent_runs_have_numbers_without_gaps():
    of = repository()
    asked = [request(workflow_text({"a": None}), of) for _ in range(8)]
    together(*[lambda one=one: start(one) for one in asked])
    assert sorted(WorkflowRun.objects.values_list("run_index", flat=True)) == list(range(1, 9))


def test_a_refusal_leaves_nothing():
    of = repository(ProjectFactory(enabled=False))
    with pytest.raises(ProjectNotEnabled):
        started(CHAIN, of)
    assert not WorkflowRun.objects.exists()
    of.refresh_from_db()
    assert of.next_run_index == 1
    with pytest.raises(NotFound):
        start(request(workflow_text({"a": None}), of, repository_id=of.pk + 1))


def test_the_default_timeout_is_that_of_the_plan_if_it_is_less():
    PlanFactory(max_timeout_seconds=900)
    assert job_of(started({"a": None}), "a").timeout_seconds == 900
    run = started({"a": None}, repository(name="long"))
    run.repository.project.organization.plan.max_timeout_seconds = 86_400
    run.repository.project.organization.plan.save()
    assert job_of(started({"a": None}, run.repository), "a").timeout_seconds == 360 * 60


def test_an_explicit_timeout_above_the_plan_is_a_diagnostic_and_no_run():
    PlanFactory(max_timeout_seconds=900)
    with pytest.raises(WorkflowRejected) as caught:
        started({"a": {"timeout_minutes": "15"}, "b": {"timeout_minutes": "16"}})
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.path, diagnostic.line) == ("jobs.b.timeout-minutes", 7)
    assert "at most 15 minutes" in diagnostic.message
    assert not WorkflowRun.objects.exists()


# --- needs and conditions ---------------------------------------------------------------------------------------------


def test_jobs_run_in_the_order_of_their_needs():
    run, runner = started(CHAIN), Runner()
    assert states(run) == {"build": "queued", "test": "blocked", "deploy": "blocked"}
    assert runner.run_all() == ["build", "test", "deploy"]
    assert reread(run).conclusion == "success"


def test_a_job_may_need_one_that_follows_in_the_file():
    run = started({"deploy": {"needs": "build"}, "build": None})
    assert run.job_keys == ["deploy", "build"]
    assert job_of(run, "build").pk < job_of(run, "deploy").pk
    assert Runner().run_all() == ["build", "deploy"]


def test_what_needs_a_failed_job_is_skipped_and_the_failure_decides():
    run, runner = started(CHAIN | {"lint": None}), Runner()
    assert runner.run_all(build="failure") == ["build", "lint"]
    assert states(run) == {
        "build": "failed", "test": "canceled:dependency_failed", "deploy": "canceled:dependency_failed",
        "lint": "succeeded",
    }  # fmt: skip
    assert reread(run).conclusion == "failure"


@pytest.mark.parametrize(
    ("condition", "build", "runs"),
    [
        ("success()", "success", True),
        ("success()", "failure", False),
        ("failure()", "failure", True),
        ("failure()", "success", False),
        ("always()", "failure", True),
        ("always()", "success", True),
        ("cancelled()", "cancelled", True),
        ("cancelled()", "failure", False),
        ("failure() || cancelled()", "timed_out", True),
        ("shithub.ref == 'refs/heads/main'", "success", True),
        ("shithub.ref == 'refs/heads/main'", "failure", False),
        ("shithub.ref == 'refs/heads/x'", "success", False),
        ("shithub.event.ref == shithub.ref && shithub.actor == 'alice'", "success", True),
        ("github.sha == ''", "success", False),
        ("env.STAGE == 'x-refs/heads/main'", "success", True),
        ("vars.REGION == 'eu' && vars.region == 'eu' && vars.ORG == 'all'", "success", True),
        ("always() && vars.MISSING == 'x'", "success", False),
    ],
)
def test_the_condition_of_a_job_is_decided_when_its_needs_have_ended(condition, build, runs):
    of = repository()
    organization = of.project.organization
    for name, value, own in (("REGION", "us", None), ("ORG", "all", None), ("region", "eu", of)):
        Variable.objects.create(
            organization=organization, repository=own, name=name, value=value, updated_by="x",
            created_at="2026-01-01T00:00Z", updated_at="2026-01-01T00:00Z",
        )  # fmt: skip
    after = {"needs": "build", "if": f'"{condition}"', "env": '{STAGE: "x-${{ shithub.ref }}"}'}
    run, runner = started({"build": None, "after": after}, of), Runner()
    runner.run_all(build=build)
    expected = "succeeded" if runs else "canceled:condition_false"
    found = states(run)["after"]
    if not runs and "()" not in condition and build != "success":
        expected = "canceled:dependency_failed"
    assert found == expected


def test_a_run_of_a_pull_request_has_no_variables():
    of = repository()
    Variable.objects.create(
        organization=of.project.organization, name="A", value="x", updated_by="x",
        created_at="2026-01-01T00:00Z", updated_at="2026-01-01T00:00Z",
    )  # fmt: skip
    jobs = {"a": {"if": "vars.A == 'x'"}}
    assert states(started(jobs, of)) == {"a": "queued"}
    assert states(started(jobs, of, event=WorkflowEvent.PULL_REQUEST)) == {"a": "canceled:condition_false"}


def test_a_job_without_needs_is_decided_at_the_start():
    run = started(
        {"a": {"if": "\"'false'\""}, "b": {"if": "false"}, "c": {"needs": "b"}, "d": {"needs": "b", "if": "always()"}}
    )
    assert states(run) == {
        "a": "queued", "b": "canceled:condition_false", "c": "canceled:dependency_failed", "d": "queued",
    }  # fmt: skip
    assert [step.status for step in JobStep.objects.filter(job=job_of(run, "b"))] == ["skipped"]
    Runner().run_all()
    assert reread(run).conclusion == "success"


def test_a_run_whose_jobs_are_all_skipped_is_complete_at_once():
    run = started({"a": {"if": "false"}, "b": {"needs": "a"}})
    assert reread(run).conclusion == "success"
    assert state_of_run(run).status == RunStatus.COMPLETED
    assert state_of(run.batch) == BatchState.SUCCEEDED


def test_failure_asks_for_all_jobs_before():
    run = started(
        CHAIN | {"notify": {"needs": "deploy", "if": "failure()"}, "thank": {"needs": "deploy", "if": "success()"}}
    )
    assert Runner().run_all(build="failure") == ["build", "notify"]
    assert states(run)["thank"] == "canceled:condition_false"
    assert reread(run).conclusion == "failure"


def test_a_condition_waits_for_all_needs():
    run, runner = started({"a": None, "b": None, "c": {"needs": "[a, b]", "if": "failure()"}}), Runner()
    runner.claim_all()
    runner.end("a", "failure")
    assert states(run)["c"] == "blocked"
    runner.end("b")
    assert states(run)["c"] == "queued"


def test_dependencies_say_whether_they_need_a_success():
    run = started(
        {"a": None, "b": {"needs": "a"}, "c": {"needs": "a", "if": "vars.X"}, "d": {"needs": "a", "if": "always()"}}
    )
    found = {edge.job.spec["job_key"]: edge.needs_success for edge in Dependency.objects.select_related("job")}
    assert found == {"b": True, "c": True, "d": False}
    assert run.pk


# --- conclusion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "conclusion"),
    [
        ({}, "success"),
        ({"a": "neutral", "b": "skipped"}, "success"),
        ({"b": "failure"}, "failure"),
        ({"a": "failure", "b": "timed_out"}, "failure"),
        ({"a": "timed_out", "b": "failure"}, "timed_out"),
        ({"a": "cancelled"}, "cancelled"),
        ({"a": "cancelled", "c": "failure"}, "failure"),
    ],
)
def test_the_conclusion_is_that_of_the_first_failing_job(ends, conclusion):
    run, runner = started({"a": None, "b": None, "c": None}), Runner()
    keys = runner.claim_all()
    for key in reversed(keys):
        assert state_of_run(run).conclusion is None
        assert reread(run).conclusion is None
        runner.end(key, ends.get(key, "success"))
    assert state_of_run(run).conclusion == conclusion
    found = reread(run)
    assert (found.conclusion, found.completed_at is not None) == (conclusion, True)


def test_the_status_of_a_run_follows_its_jobs():
    run, runner = started(CHAIN), Runner()
    assert state_of_run(run).status == RunStatus.QUEUED
    runner.claim()
    assert state_of_run(run).status == RunStatus.RUNNING
    runner.end("build")
    assert state_of_run(run).status == RunStatus.RUNNING
    runner.run_all()
    assert state_of_run(run).status == RunStatus.COMPLETED


def test_a_canceled_run_is_cancelled():
    run, runner = started(CHAIN | {"last": {"needs": "build", "if": "always()"}}), Runner()
    runner.claim()
    assert canceled(run).accepted
    assert states(run) == {
        "build": "starting", "test": "canceled:batch_canceled", "deploy": "canceled:batch_canceled",
        "last": "canceled:batch_canceled",
    }  # fmt: skip
    runner.end("build", "cancelled")
    assert reread(run).conclusion == "cancelled"


def test_the_batch_of_a_run_is_not_rerun_without_its_file():
    run = started({"a": None})
    with pytest.raises(ResourceConflict, match="workflow run"):
        batches.rerun_batch(
            batch_ulid=run.batch.batch_ulid, policy_for=None, default_pool="x", cause=Cause(ALICE), correlation_id="",
        )  # fmt: skip


def test_a_process_that_dies_after_the_last_job_leaves_the_end_to_housekeeping(monkeypatch):
    run, runner = started({"a": None}), Runner()
    with monkeypatch.context() as patch:
        patch.setattr(workflow_end, "settle_run", lambda **_: [])
        runner.run_all()
    assert reread(run).conclusion is None
    assert state_of_run(run).conclusion == "success"  # readers do not wait for it
    assert workflow_end.settle_pending_runs(limit=10) == 1
    assert reread(run).conclusion == "success"
    assert workflow_end.settle_pending_runs(limit=10) == 0


@pytest.mark.django_db(transaction=True)
def test_jobs_that_end_at_the_same_time_complete_the_run_once():
    for _ in range(4):
        run, runner = started(dict.fromkeys("abcd")), Runner()
        keys = runner.claim_all()
        together(*[partial(runner.end, key) for key in keys])
        assert reread(run).conclusion == "success"


# --- concurrency of runs ----------------------------------------------------------------------------------------------

WAITING = {"concurrency": "deploy"}
CANCELING = {"concurrency": "{group: deploy, cancel-in-progress: true}"}


def test_a_run_waits_until_the_older_runs_of_its_group_have_ended():
    of, runner = repository(), Runner()
    first, second, third = (started(CHAIN, of, top=WAITING) for _ in range(3))
    other = started({"a": None}, repository(name="other"), top=WAITING)
    assert (first.hold, second.hold, third.hold, other.hold) == ("", "concurrency", "concurrency", "")
    assert runner.claim_all() == ["build", "a"]
    reason = pending_for([job_of(second, "build")])[job_of(second, "build").pk].reason
    assert (reason.code, reason.facts) == ("concurrency_group", {"concurrency_group": "deploy"})
    runner.end("a")
    runner.end("build")
    assert runner.run_all() == ["test", "deploy", *["build", "test", "deploy"] * 2]
    assert [reread(run).conclusion for run in (first, second, third)] == ["success"] * 3
    assert [reread(run).hold for run in (first, second, third)] == [""] * 3


def test_a_run_that_begins_to_wait_is_counted(monkeypatch):
    counted = []
    monkeypatch.setattr(workflow_runs, "count", counted.extend)
    of = repository()
    for _ in range(3):
        started({"a": None}, of, top=WAITING)
    assert counted == [CONCURRENCY_QUEUED] * 2


def test_a_waiting_run_may_be_canceled_and_the_next_one_still_waits():
    of, runner = repository(), Runner()
    first, second, third = (started({"a": None}, of, top=WAITING) for _ in range(3))
    runner.claim()
    canceled(second)
    assert reread(second).conclusion == "cancelled"
    assert states(third) == {"a": "blocked"}
    runner.end("a")
    assert states(third) == {"a": "queued"}
    assert reread(first).conclusion == "success"


def test_a_run_whose_jobs_are_being_canceled_is_not_waited_for():
    of, runner = repository(), Runner()
    first, second = (started({"a": None}, of, top=WAITING) for _ in range(2))
    runner.claim()
    canceled(first)
    assert states(second) == {"a": "queued"}
    assert reread(first).conclusion is None
    third = started({"a": None}, of, top=WAITING)
    assert third.hold == "concurrency"  # for the second


def test_a_waiting_run_whose_jobs_are_all_skipped_lets_the_next_one_begin():
    of, runner = repository(), Runner()
    started({"a": None}, of, top=WAITING)
    skipped = [started({"a": {"if": "false"}}, of, top=WAITING) for _ in range(5)]
    last = started({"a": None}, of, top=WAITING)
    assert [run.hold for run in skipped] == ["concurrency"] * 5
    runner.claim()
    runner.end("a")
    assert [reread(run).conclusion for run in skipped] == ["success"] * 5
    assert states(last) == {"a": "queued"}


def test_runs_that_wait_hide_no_end_from_housekeeping(monkeypatch):
    of, runner = repository(), Runner()
    first, *waiting = (started({"a": None}, of, top=WAITING) for _ in range(4))
    assert runner.claim_all() == ["a"]
    ended = started({"b": None}, repository(name="other"))
    with monkeypatch.context() as patch:
        patch.setattr(workflow_end, "settle_run", lambda **_: [])
        runner.claim_all()
        runner.end("b")
    found = workflow_end.settle_pending_runs(limit=2)
    assert reread(ended).conclusion == "success"
    assert found == 1, "runs that must wait longer are not settled"
    assert reread(first).conclusion is None
    assert [reread(run).hold for run in waiting] == ["concurrency"] * 3


def test_housekeeping_releases_the_oldest_waiting_run_of_each_group(monkeypatch):
    busy, runner = [repository(name=name) for name in ("a", "b")], Runner()
    for of in busy:  # their runs are older, and must wait
        for _ in range(2):
            started({"a": None}, of, top=WAITING)
    assert runner.claim_all() == ["a", "a"]
    free = [repository(name=name) for name in ("c", "d")]
    runs = [[started({"b": None}, of, top=WAITING) for _ in range(3)] for of in free]
    assert runner.claim_all() == ["b", "b"]
    with monkeypatch.context() as patch:  # the processes die after the end of each run, before the release
        patch.setattr(workflow_end, "_release_next", lambda *_: None)
        for _ in free:
            runner.end("b")
    found = [workflow_end.settle_pending_runs(limit=1) for _ in range(3)]
    assert [[reread(run).hold for run in group] for group in runs] == [["", "", "concurrency"]] * 2
    assert [states(group[1]) for group in runs] == [{"b": "queued"}] * 2
    assert found == [1, 1, 0]


def test_a_run_may_cancel_the_older_runs_of_its_group():
    of, runner = repository(), Runner()
    running = started(CHAIN, of, top=CANCELING)
    runner.claim()
    newer = started(CHAIN, of, top=CANCELING)
    assert states(running)["test"] == "canceled:superseded"
    build = job_of(running, "build")
    assert (build.state, build.cancel_reason) == ("starting", CancelReason.SUPERSEDED)
    assert newer.hold == ""
    newest = started(CHAIN, of, top=CANCELING)
    assert reread(newer).conclusion == "cancelled"
    assert states(newest)["build"] == "queued"
    runner.end("build", "cancelled")
    assert reread(running).conclusion == "cancelled"
    assert started(CHAIN, of, top={"concurrency": "other"}).hold == ""


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("ci-${{ shithub.ref }}", "ci-refs/heads/main"),
        ("${{ shithub.event.missing }}", ""),
        ("${{ shithub.event.missing || shithub.sha }}", COMMIT),
        ("'  x  '", "x"),
    ],
)
def test_a_group_is_evaluated(group, expected):
    assert started({"a": None}, top={"concurrency": group}).concurrency_group == expected


def test_a_group_may_be_the_run_itself():
    run = started({"a": None}, top={"concurrency": "${{ github.run_id }}"})
    assert run.concurrency_group == str(run.pk)


def test_a_long_group_counts_by_its_hash():
    payload = [{"ref": "x" * 300 + end} for end in "aab"]
    runs = [
        started({"a": None}, repository(), top={"concurrency": "${{ shithub.event.ref }}"}, event_payload=one)
        for one in payload
    ]
    assert all(len(run.concurrency_group) == 256 for run in runs)
    assert [run.hold for run in runs] == ["", "concurrency", ""]


@pytest.mark.django_db(transaction=True)
def test_of_runs_that_start_at_once_one_begins():
    of = repository()
    for _ in range(3):
        asked = [request(workflow_text({"a": None}, **WAITING), of) for _ in range(5)]
        together(*[lambda one=one: start(one) for one in asked])
        open_runs = WorkflowRun.objects.filter(conclusion=None)
        assert sorted(open_runs.values_list("hold", flat=True)) == [""] + ["concurrency"] * 4
        assert len(Runner().run_all()) == 5


@pytest.mark.django_db(transaction=True)
def test_a_run_that_starts_while_the_older_one_ends_begins():
    """The end is committed between the lock and the decision of the start, or after both."""
    for _ in range(6):
        of, runner = repository(), Runner()
        started({"a": None}, of, top=WAITING)
        runner.claim()
        asked = request(workflow_text({"b": None}, **WAITING), of)
        together(partial(runner.end, "a"), partial(start, asked))
        assert runner.run_all() == ["b"]


def waits_for_a_lock():
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return cursor.fetchone()[0]


@pytest.mark.django_db(transaction=True)
def test_an_end_during_the_start_of_a_waiting_run_is_noticed(monkeypatch):
    """The start has found the older run open and holds the lock of the repository when that run ends."""
    of, runner = repository(), Runner()
    started({"a": None}, of, top=WAITING)
    runner.claim()
    decide, ended = workflow_runs.has_older_run, threading.Event()

    def end():
        try:
            runner.end("a")
        finally:
            ended.set()
            connection.close()

    def decided(run):
        found = decide(run)
        threads.append(threading.Thread(target=end))
        threads[0].start()
        while not ended.wait(0.02) and not waits_for_a_lock():
            pass
        return found

    threads: list[threading.Thread] = []
    monkeypatch.setattr(workflow_runs, "has_older_run", decided)
    second = started({"b": None}, of, top=WAITING)
    assert second.hold == "concurrency"
    threads[0].join(timeout=60)
    assert ended.is_set()
    assert states(second) == {"b": "queued"}


# --- approval ---------------------------------------------------------------------------------------------------------


def approve(run, actor=ALICE):
    return approval.approve_workflow_run(run_id=run.pk, cause=Cause(actor))


def test_a_run_of_a_fork_waits_for_an_approval():
    run, runner = started(CHAIN, from_fork=True, needs_approval=True), Runner()
    assert runner.claim() is None
    job = job_of(run, "build")
    assert pending_for([job])[job.pk].reason.code == "approval"
    approved = approve(run, OPERATOR)
    assert (approved.hold, approved.approved_by) == ("", "operator:olga")
    assert approve(run, ALICE).approved_by == "operator:olga"
    event = OperatorEvent.objects.get()
    assert (event.action, event.actor, event.target) == ("workflow_run.approve", "operator:olga", "alice/demo#1")
    assert runner.run_all() == ["build", "test", "deploy"]


def test_only_a_waiting_run_can_be_approved():
    with pytest.raises(ResourceConflict, match="needs no approval"):
        approve(started({"a": None}))
    run = started({"a": None}, repository(name="b"), needs_approval=True)
    canceled(run)
    with pytest.raises(ResourceConflict, match="has ended"):
        approve(run)
    run.pk += 1000
    with pytest.raises(NotFound):
        approve(run)


def test_a_run_that_waits_for_its_approval_keeps_no_other_one_waiting():
    of, runner = repository(), Runner()
    foreign = started({"a": None}, of, top=WAITING, needs_approval=True)
    own = started({"b": None}, of, top=WAITING)
    assert own.hold == ""
    assert approve(foreign).hold == "concurrency"
    assert runner.run_all() == ["b", "a"]


def test_a_condition_is_decided_at_the_approval():
    run = started({"a": {"if": "false"}, "b": None}, needs_approval=True)
    assert states(run) == {"a": "blocked", "b": "blocked"}
    approve(run)
    assert states(run) == {"a": "canceled:condition_false", "b": "queued"}


def test_the_failure_of_a_runner_is_a_failure_of_the_run():
    run, runner = started(CHAIN), Runner()
    job = runner.claim()
    worker_state.revoke(job_ulid=job.job_ulid, actor=OPERATOR, reason="gone")
    job.refresh_from_db()
    assert (job.state, job.failure_reason) == ("failed", FailureReason.WORKER_LOST)
    assert Job.objects.filter(batch_id=run.batch_id).count() == 3  # no retry
    assert reread(run).conclusion == "failure"


def test_a_run_needs_its_jobs():
    with pytest.raises(Invalid):
        reruns.rerun_workflow(
            reread(started({"a": {"if": "false"}})), request(workflow_text({"a": None})).workflow,
            reruns.RerunRequest("bob", "x", scope=reruns.RerunScope.FAILED), default_pool="x", actor=ALICE,
        )  # fmt: skip
