"""Events start the runs of the workflow files of their commit, once, and wrong files are recorded."""

from datetime import timedelta

import pytest
from django.db import OperationalError

from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.registry import PermanentFailure, SubjectGone
from orchestrator.processes.housekeeping import HousekeepingProcess
from orchestrator.repositories.errors import RepositoryError
from orchestrator.workflows import runs as run_operations
from orchestrator.workflows.triggers import TriggerFacts, process_trigger, record_trigger
from runtime_jobs.errors import QuotaExceeded
from runtime_jobs.models import RejectedWorkflow, WorkflowEvent, WorkflowRun, WorkflowSchedule, WorkflowTrigger
from tests.factories import PlanFactory
from tests.workers.agent.repositories import git
from tests.workflow_runs import workflow_text

pytestmark = pytest.mark.django_db
FOLDER = ".shithub/workflows"
CI = workflow_text({"a": None})
ZEROS = "0" * 40


def files(**texts):
    return {f"{FOLDER}/{name}.yml": text.encode() for name, text in texts.items()}


def pushed(repository, commit, ref="refs/heads/main", before=ZEROS, trigger_id="push:1", **facts):
    return record_trigger(
        repository, event=WorkflowEvent.PUSH, trigger_id=trigger_id, head_sha=commit,
        facts=TriggerFacts(ref=ref, payload={"ref": ref}, actor_name="maria", base_sha=before, **facts),
    )  # fmt: skip


def processed():
    """Let housekeeping do what is due."""
    process = HousekeepingProcess(threads=1)
    while process.run_due():
        pass


def runs(**filters):
    return list(WorkflowRun.objects.filter(**filters).order_by("workflow_file").values_list("workflow_file", flat=True))


def test_a_push_runs_each_matching_file_once(repository, origin):
    commit = origin.commit(
        {
            "README": b"x",
            **files(
                ci=CI,
                tags=workflow_text({"a": None}, on="{push: {tags: v*}}"),
                requests=workflow_text({"a": None}, on="pull_request"),
                wrong="on: push\njobs:\n  a: {runs-on: linux, step: []}\n",
            ),
            f"{FOLDER}/other.yaml": CI.encode(),
            f"{FOLDER}/deeper/ci.yml": CI.encode(),
            f"{FOLDER}/notes.md": b"x",
        }
    )
    assert pushed(repository, commit)
    assert not pushed(repository, commit)
    processed()
    assert runs() == [f"{FOLDER}/ci.yml", f"{FOLDER}/other.yaml"]
    run = WorkflowRun.objects.first()
    assert (run.head_sha, run.head_ref, run.event, run.actor) == (commit, "refs/heads/main", "push", "maria")
    assert run.event_payload == {"ref": "refs/heads/main"}
    assert not run.needs_approval
    rejected = RejectedWorkflow.objects.get()
    assert (rejected.workflow_file, rejected.head_sha) == (f"{FOLDER}/wrong.yml", commit)
    assert {(found["path"], found["line"]) for found in rejected.diagnostics} == {("jobs.a", 3), ("jobs.a.step", 3)}
    assert WorkflowTrigger.objects.get().processed_at is not None
    assert not pushed(repository, commit)
    processed()
    assert WorkflowRun.objects.count() == 2


def test_an_event_that_is_processed_twice_changes_nothing(repository, origin):
    commit = origin.commit(files(ci=CI, wrong="on: [push]"))
    pushed(repository, commit)
    processed()
    trigger = WorkflowTrigger.objects.get()
    WorkflowTrigger.objects.update(processed_at=None)  # as if the process had died before it stored the time
    process_trigger(str(trigger.pk))
    process_trigger(str(trigger.pk))
    assert (WorkflowRun.objects.count(), RejectedWorkflow.objects.count()) == (1, 1)


def test_the_files_are_those_of_the_commit(repository, origin):
    old = origin.commit(files(ci=CI))
    origin.commit({"README": b"without workflows"}, parent=old)
    pushed(repository, old)
    processed()
    assert runs() == [f"{FOLDER}/ci.yml"]


def test_a_commit_that_the_mirror_lacks_is_fetched(unmirrored, origin):
    commit = origin.commit(files(ci=CI))
    pushed(unmirrored, commit)
    processed()
    assert runs() == [f"{FOLDER}/ci.yml"]


def test_a_commit_that_does_not_exist_is_tried_for_a_day(repository):
    pushed(repository, "f" * 40)
    trigger = WorkflowTrigger.objects.get()
    with pytest.raises(RepositoryError):
        process_trigger(str(trigger.pk))
    WorkflowTrigger.objects.update(received_at=trigger.received_at - timedelta(hours=25))
    with pytest.raises(PermanentFailure, match=r"within 24 hours\. CommitNotFound: "):
        process_trigger(str(trigger.pk))
    with pytest.raises(SubjectGone):
        process_trigger(str(trigger.pk + 1))


@pytest.mark.parametrize("name", [b"a" * 250 + b".yml", b"a\xff.yml"], ids=["too long", "not UTF-8"])
def test_a_file_whose_name_cannot_be_stored_stops_no_other_file(repository, origin, caplog, name):
    blob = origin.blob(CI.encode())
    listed = b"".join(b"100644 blob %b\t%b\0" % (blob.encode(), file) for file in (name, b"z.yml"))
    tree = git("mktree", "-z", at=origin.path, send=listed)
    for folder in reversed(FOLDER.split("/")):
        tree = git("mktree", at=origin.path, send=f"040000 tree {tree}\t{folder}\n".encode())
    pushed(repository, origin.commit_tree(tree))
    processed()
    assert runs() == [f"{FOLDER}/z.yml"]
    assert not RejectedWorkflow.objects.exists()
    assert not HousekeepingTask.objects.filter(kind="workflow_trigger").exists()
    assert "is left out: its name cannot be stored" in caplog.text


@pytest.mark.parametrize("error", [QuotaExceeded("full", limit=1, current=1, retry_after=1), ValueError("wrong")])
def test_an_event_that_cannot_be_processed_is_tried_for_a_day(repository, origin, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(run_operations, "start_workflow_run", fail)
    pushed(repository, origin.commit(files(ci=CI)))
    trigger = WorkflowTrigger.objects.get()
    with pytest.raises(type(error)):
        process_trigger(str(trigger.pk))
    WorkflowTrigger.objects.update(received_at=trigger.received_at - timedelta(hours=25))
    with pytest.raises(PermanentFailure, match=type(error).__name__):
        process_trigger(str(trigger.pk))


def test_a_lost_connection_is_no_reason_to_stop_trying(repository, origin, monkeypatch):
    def lose(*_, **__):
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(run_operations, "start_workflow_run", lose)
    pushed(repository, origin.commit(files(ci=CI)))
    trigger = WorkflowTrigger.objects.get()
    WorkflowTrigger.objects.update(received_at=trigger.received_at - timedelta(hours=25))
    with pytest.raises(OperationalError):
        process_trigger(str(trigger.pk))


def test_filters_of_paths_see_what_the_push_changed(repository, origin):
    on = "{{push: {{paths: {paths}}}}}"
    texts = files(
        src=workflow_text({"a": None}, on=on.format(paths="src/**")),
        docs=workflow_text({"a": None}, on=on.format(paths="docs/**")),
    )
    first = origin.commit({"src/a": b"1", "docs/a": b"1", **texts})
    second = origin.commit({"src/a": b"2", "docs/a": b"1", **texts}, parent=first)
    pushed(repository, second, before=first)
    processed()
    assert runs() == [f"{FOLDER}/src.yml"]
    pushed(repository, second, before="e" * 40, trigger_id="push:unknown")
    processed()
    assert runs(trigger_id="push:unknown") == [f"{FOLDER}/docs.yml", f"{FOLDER}/src.yml"]


def test_a_pull_request_of_a_fork_waits_for_its_approval(repository, origin):
    base = origin.commit({"README": b"x"})
    texts = files(
        ci=workflow_text({"a": None}, on="{pull_request: {branches: main, paths: src/**}}"),
        closed=workflow_text({"a": None}, on="{pull_request: {types: closed}}"),
        next=workflow_text({"a": None}, on="{pull_request: {branches: next}}"),
    )
    head = origin.commit({"README": b"x", "src/a": b"1", **texts}, parent=base)
    for number, from_fork in ((1, True), (2, False)):
        record_trigger(
            repository, event=WorkflowEvent.PULL_REQUEST, trigger_id=f"pr_opened:{number}:{head}", head_sha=head,
            facts=TriggerFacts(
                ref=f"refs/pull/{number}/head", action="opened", base_branch="main", base_sha=base,
                from_fork=from_fork,
            ),
        )  # fmt: skip
    processed()
    assert list(WorkflowRun.objects.order_by("pk").values_list("workflow_file", "hold", "from_fork")) == [
        (f"{FOLDER}/ci.yml", "approval", True),
        (f"{FOLDER}/ci.yml", "", False),
    ]


def test_a_timeout_above_the_plan_is_recorded(repository, origin):
    PlanFactory(max_timeout_seconds=900)
    commit = origin.commit(files(ci=workflow_text({"a": {"timeout_minutes": "16"}})))
    pushed(repository, commit)
    processed()
    (found,) = RejectedWorkflow.objects.get().diagnostics
    assert found["path"] == "jobs.a.timeout-minutes"
    assert not WorkflowRun.objects.exists()


def test_a_disabled_project_runs_nothing_and_the_reason_is_recorded(repository, origin):
    repository.project.enabled = False
    repository.project.save()
    pushed(repository, origin.commit(files(ci=CI)))
    processed()
    (found,) = RejectedWorkflow.objects.get().diagnostics
    assert found["message"].startswith("project_not_enabled: ")


def test_a_full_queue_lets_the_task_be_repeated(repository, origin, monkeypatch):
    pushed(repository, origin.commit(files(a=CI, b=CI)))
    start, refused = run_operations.start_workflow_run, []

    def full_for_b(request, **options):
        if request.workflow_file.endswith("b.yml") and not refused:
            refused.append(request)
            raise QuotaExceeded("full", limit=1, current=1, retry_after=1)
        return start(request, **options)

    monkeypatch.setattr(run_operations, "start_workflow_run", full_for_b)
    processed()
    assert runs() == [f"{FOLDER}/a.yml"]
    task = HousekeepingTask.objects.get(kind="workflow_trigger")
    assert (task.failures, task.last_error) == (1, "QuotaExceeded: full")
    process_trigger(task.subject)
    assert runs() == [f"{FOLDER}/a.yml", f"{FOLDER}/b.yml"]
    assert not RejectedWorkflow.objects.exists()


def test_a_push_to_the_default_branch_stores_its_schedules(repository, origin):
    on = "{{schedule: [{{cron: '{cron}'}}]}}"
    first = origin.commit(
        files(
            a=workflow_text({"a": None}, on=on.format(cron="0 4 * * *")),
            b=workflow_text({"a": None}, on=on.format(cron="0 5 * * *")),
        )
    )
    pushed(repository, first)
    processed()
    stored = {row.workflow_file[-5]: row for row in WorkflowSchedule.objects.all()}
    assert {name: row.cron for name, row in stored.items()} == {"a": "0 4 * * *", "b": "0 5 * * *"}
    second = origin.commit(
        files(b=workflow_text({"a": None}, on=on.format(cron="0 5 * * *")), c="on: push"), parent=first
    )
    origin.branch("topic", second)
    pushed(repository, second, ref="refs/heads/topic", trigger_id="push:2")
    processed()
    assert WorkflowSchedule.objects.count() == 2
    pushed(repository, second, trigger_id="push:3")
    processed()
    assert WorkflowSchedule.objects.get() == stored["b"]


NIGHTLY = workflow_text({"a": None}, on="{push: , schedule: [{cron: '0 4 * * *'}]}")


def test_an_older_push_that_is_processed_later_stores_no_schedules(repository, origin):
    first = origin.commit(files(ci=CI))
    second = origin.commit(files(ci=CI, nightly=NIGHTLY), parent=first)
    pushed(repository, first, trigger_id="push:1")
    pushed(repository, second, trigger_id="push:2")
    pushed(repository, first, ref="refs/heads/topic", trigger_id="push:3")
    for trigger_id in ("push:2", "push:1", "push:3"):
        process_trigger(str(WorkflowTrigger.objects.get(trigger_id=trigger_id).pk))
    assert WorkflowSchedule.objects.get().workflow_file == f"{FOLDER}/nightly.yml"
    assert runs(trigger_id="push:1") == [f"{FOLDER}/ci.yml"]


def test_a_full_queue_does_not_delay_the_schedules(repository, origin, monkeypatch):
    def full(*_, **__):
        raise QuotaExceeded("full", limit=1, current=1, retry_after=1)

    monkeypatch.setattr(run_operations, "start_workflow_run", full)
    pushed(repository, origin.commit(files(nightly=NIGHTLY)))
    processed()
    assert WorkflowSchedule.objects.get().workflow_file == f"{FOLDER}/nightly.yml"
