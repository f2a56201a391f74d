"""`/v1/batches` and `/v1/checks`: start, list, show, cancel, rerun, approve, pin, and what others may not see."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.repositories.contents import has_commit
from orchestrator.repositories.mirrors import update_mirror
from orchestrator.repositories.tasks import MIRROR, mirror_repository
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Batch, Job, OperatorEvent, Repository, WorkflowRun
from tests.api_client import Caller, problem_of, refused
from tests.factories import OrganizationFactory, ProjectFactory, api_token
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import Runner, reread, started, workflow_text

pytestmark = pytest.mark.django_db
FILE = ".shithub/workflows/ci.yml"
JOBS = {"build": None, "test": {"needs": "build"}}
TEXT = workflow_text(JOBS, on="{push: , workflow_dispatch: {inputs: {target: {required: true}}}}", name="CI")


@pytest.fixture(autouse=True)
def folders(settings, tmp_path):
    (tmp_path / "origins").mkdir()
    settings.REPOSITORY_ROOT = str(tmp_path / "origins")
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    return tmp_path


@pytest.fixture
def origin(folders):
    return Origin(folders / "origins" / "web.git")


@pytest.fixture
def repository(origin, organization):
    commit = origin.commit({FILE: TEXT.encode(), ".shithub/workflows/wrong.yml": b"on: push\njobs: {}\n"})
    origin.branch("main", commit)
    found = mirrored(origin, full_name="alice/demo", project=organization.projects.get())
    found.commit = commit
    mirrored_ago(found, -3600)  # however slow the machine is, the mirror is fresh
    return found


def mirrored_ago(repository, seconds):
    at = None if seconds is None else database_now() - timedelta(seconds=seconds)
    Repository.objects.filter(pk=repository.pk).update(mirrored_at=at)


def mirror_due_in(repository):
    task = HousekeepingTask.objects.get(kind=MIRROR, subject=str(repository.pk))
    return (task.due_at - database_now()).total_seconds()


def body(**changes):
    values = {"org_slug": "sandtrace", "repository": "alice/demo", "workflow_file": FILE, "ref": "main"}
    return values | {"inputs": {"target": "staging"}} | changes


def start(caller, **changes):
    answer = caller.post("/v1/batches", body(**changes))
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_a_run_is_started_by_hand(alice, repository):
    answer = alice.post("/v1/batches", body())
    assert answer.status_code == 201, answer.content
    found = answer.json()
    run = WorkflowRun.objects.get()
    assert (found["run_id"], found["run_index"], found["batch_id"]) == (run.pk, 1, run.batch.batch_ulid)
    assert answer["Location"] == f"/v1/batches/{found['batch_id']}"
    jobs = {job.spec["job_key"]: job for job in Job.objects.all()}
    assert [(job["job_id"], job["id"], job["job_key"], job["needs"], job["status"]) for job in found["jobs"]] == [
        (jobs["build"].job_ulid, jobs["build"].pk, "build", [], "queued"),
        (jobs["test"].job_ulid, jobs["test"].pk, "test", ["build"], "queued"),
    ]
    assert (run.event, run.head_sha, run.head_ref) == ("workflow_dispatch", repository.commit, "refs/heads/main")
    assert run.event_payload == {"inputs": {"target": "staging"}}
    assert run.actor == "token-test"


def test_a_request_with_a_key_starts_one_run(alice, repository):
    key = {"Idempotency-Key": "k"}
    first, again = (alice.post("/v1/batches", body(), **key) for _ in range(2))
    assert first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true"
    refused(lambda: alice.post("/v1/batches", body(inputs={"target": "x"}), **key), 409, "idempotency_conflict")
    assert WorkflowRun.objects.count() == 1


def test_another_event_has_a_payload(alice, repository):
    start(alice, event="push", event_payload={"ref": "x"}, inputs={}, commit=repository.commit, ref="refs/heads/main")
    assert WorkflowRun.objects.get().event_payload == {"ref": "x"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"org_slug": "Sand"}, "org_slug"),
        ({"repository": "demo"}, "repository"),
        ({"workflow_file": "ci.yml"}, "workflow_file"),
        ({"ref": ""}, "ref"),
        ({"commit": "abc"}, "commit"),
        ({"inputs": {"target": 1}}, "inputs"),
        ({"inputs": {}}, "inputs.target"),
        ({"inputs": {"target": "x", "more": "y"}}, "inputs.more"),
        ({"event": "release"}, "event"),
        ({"event": "schedule", "inputs": {}}, "event"),
        ({"event": "push"}, "inputs"),
        ({"event_payload": {"a": 1}}, "event_payload"),
        ({"event_payload": []}, "event_payload"),
        ({"event": "push", "inputs": {}, "event_payload": {"a": "x" * 70_000}}, "event_payload"),
        ({"workflow_file": ".shithub/workflows/wrong.yml"}, "jobs"),
    ],
)
def test_a_wrong_start_names_the_field(alice, repository, changes, field):
    problem = refused(lambda: alice.post("/v1/batches", body(**changes)), 400, "invalid")
    assert any(name == field or name.startswith(f"{field}.") for name in problem["errors"]), problem["errors"]


@pytest.mark.parametrize("changes", [{"ref": "new"}, {"ref": "refs/tags/v2"}, {"commit": "f" * 40}])
def test_a_ref_that_may_have_been_pushed_since_is_answered_with_a_time_to_repeat(alice, repository, changes):
    mirrored_ago(repository, 60)
    response = alice.post("/v1/batches", body(**changes))
    assert (response.status_code, response["Retry-After"]) == (409, "5")
    problem = response.json()
    assert (problem["code"], problem["retry_after"]) == ("mirror_outdated", 5)
    assert next(iter(changes)) in problem["detail"]
    assert mirror_due_in(repository) <= 0
    assert not Batch.objects.exists()


def test_a_ref_that_was_pushed_since_starts_after_the_update(alice, repository, origin):
    mirrored_ago(repository, 60)
    origin.branch("new", repository.commit)
    assert alice.post("/v1/batches", body(ref="new")).status_code == 409
    mirror_repository(str(repository.pk))
    started = alice.post("/v1/batches", body(ref="new"))
    assert started.status_code == 201
    assert WorkflowRun.objects.get().head_ref == "refs/heads/new"


FILE_CHANGES = {
    "was missing": ({"workflow_file": ".shithub/workflows/new.yml"}, 409, "conflict", "new.yml cannot be read at"),
    "was wrong": ({"workflow_file": ".shithub/workflows/wrong.yml"}, 400, "invalid", "jobs: Line 2: There are 0 jobs"),
    "lacked an input": ({"inputs": {"target": "staging", "more": "x"}}, 400, "invalid", "inputs.more"),
    "lacked the event": ({"event": "schedule", "inputs": {}}, 400, "invalid", "does not have the event schedule"),
}


@pytest.mark.parametrize("name", FILE_CHANGES)
def test_a_file_that_was_pushed_or_changed_since_starts_after_the_update(alice, repository, origin, name):
    """The copy of the branch is up to five minutes old: what its file refuses is not final until it was updated."""
    changes, status, code, reason = FILE_CHANGES[name]
    problem = problem_of(alice.post("/v1/batches", body(**changes, commit=repository.commit)))
    assert (problem["status"], problem["code"]) == (status, code), "the copy is fresh"
    mirrored_ago(repository, 60)
    problem = problem_of(alice.post("/v1/batches", body(**changes, commit=repository.commit)))
    assert (problem["status"], problem["code"]) == (status, code), "a commit never changes"
    response = alice.post("/v1/batches", body(**changes))
    assert (response.status_code, response["Retry-After"]) == (409, "5")
    assert problem_of(response)["code"] == "mirror_outdated"
    assert reason in response.json()["detail"]
    assert mirror_due_in(repository) <= 0
    on = "{workflow_dispatch: {inputs: {target: , more: }}, schedule: [{cron: '0 5 * * *'}]}"
    pushed = workflow_text({"build": None}, on=on).encode()
    names = (FILE, ".shithub/workflows/new.yml", ".shithub/workflows/wrong.yml")
    origin.branch("main", origin.commit(dict.fromkeys(names, pushed), parent=repository.commit))
    mirror_repository(str(repository.pk))
    start(alice, **changes)


@pytest.mark.parametrize(("field", "value"), [("ref", "typo"), ("commit", "f" * 40)])
def test_a_ref_that_is_missing_after_an_update_is_wrong(alice, repository, field, value):
    response = alice.post("/v1/batches", body(**{field: value}))
    problem = problem_of(response)
    assert (response.status_code, problem["code"], list(problem["errors"])) == (400, "invalid", [field])
    assert re.search(rf"does not have .*{value}.*, as of 0 seconds ago", problem["errors"][field][0])
    assert mirror_due_in(repository) <= 10  # requests update the mirror once in ten seconds at most
    assert not Batch.objects.exists()


def test_a_commit_of_the_history_of_the_ref_is_started(alice, repository, origin):
    newer = origin.git("commit-tree", f"{repository.commit}^{{tree}}", "-p", repository.commit, "-m", "newer")
    origin.branch("main", newer)
    update_mirror(repository)
    start(alice, commit=repository.commit)
    start(alice, commit=newer)
    assert [run.head_sha for run in WorkflowRun.objects.order_by("pk")] == [repository.commit, newer]


def test_a_commit_of_a_fork_is_not_started_as_one_of_a_branch(alice, repository, origin):
    """The mirror has it for the run of its pull request, which gets no secrets. A run of a branch gets them."""
    fork = origin.git("commit-tree", f"{repository.commit}^{{tree}}", "-p", repository.commit, "-m", "of a fork")
    origin.git("config", "uploadpack.allowAnySHA1InWant", "true")
    update_mirror(repository, commit=fork)
    assert has_commit(repository, fork)
    for event in ({}, {"event": "push", "event_payload": {}, "inputs": {}}):
        problem = problem_of(alice.post("/v1/batches", body(commit=fork, **event)))
        assert (problem["code"], list(problem["errors"])) == ("invalid", ["commit"])
        assert "in the history of refs/heads/main" in problem["errors"]["commit"][0]
    for ref in (
        f"refs/orchestrator/commits/{fork}",
        fork,
        "refs/pull/7/head",
        "refs/heads/main/../../orchestrator/commits",
    ):
        assert list(problem_of(alice.post("/v1/batches", body(ref=ref)))["errors"]) == ["ref"]
    assert not Batch.objects.exists()


def test_a_repository_without_a_mirror_is_answered_with_a_time_to_repeat(alice, repository, settings, tmp_path):
    settings.MIRROR_DIR = str(tmp_path / "none")
    mirrored_ago(repository, None)
    response = alice.post("/v1/batches", body())
    assert (response.status_code, problem_of(response)["code"]) == (409, "mirror_outdated")
    assert mirror_due_in(repository) <= 0


def test_an_unknown_field_is_refused(alice, repository):
    refused(lambda: alice.post("/v1/batches", body(shell="x")), 400, "unknown_field")


def test_a_missing_file_is_a_conflict(alice, repository):
    missing = {"workflow_file": ".shithub/workflows/none.yml"}
    refused(lambda: alice.post("/v1/batches", body(**missing)), 409, "conflict")


def test_batches_are_listed_and_shown(alice, repository):
    first, second = start(alice), start(alice)
    listed = alice.get("/v1/batches?repository=Alice/Demo").json()["results"]
    assert [batch["batch_id"] for batch in listed] == [second["batch_id"], first["batch_id"]]
    assert (listed[0]["state"], listed[0]["git_commit"]) == ("queued", repository.commit)
    run = listed[0]["run"]
    assert (run["run_id"], run["repository"], run["workflow_name"]) == (second["run_id"], "alice/demo", "CI")
    assert (run["status"], run["conclusion"], run["hold"]) == ("queued", None, None)
    assert alice.get("/v1/batches?repository=alice/other").json()["results"] == []
    Runner().run_all(build="failure")
    shown = alice.get(f"/v1/batches/{first['batch_id']}").json()
    assert (shown["state"], shown["run"]["status"], shown["run"]["conclusion"]) == ("failed", "completed", "failure")
    assert [(job["job_key"], job["status"], job["conclusion"]) for job in shown["jobs"]] == [
        ("build", "completed", "failure"), ("test", "completed", "skipped"),
    ]  # fmt: skip


def queries(call):
    with CaptureQueriesContext(
        connection,
    ) as found:
        assert call().status_code == 200
    return len(found)


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/checks"])
def test_a_longer_list_costs_no_more_queries(alice, repository, path):
    start(alice)
    alice.get(path)
    few = queries(lambda: alice.get(path))
    for _ in range(9):
        start(alice)
    assert len(alice.get(path).json()["results"]) >= 10
    assert queries(lambda: alice.get(path)) == few


def test_a_run_is_canceled(alice, repository):
    found = start(alice)
    path = f"/v1/batches/{found['batch_id']}/cancel"
    assert alice.post(path, {"reason": "wrong"}).status_code == 200
    answer = alice.post(path)
    assert (answer.status_code, answer.json()["run"]["conclusion"]) == (200, "cancelled")
    runner = Runner()
    other = start(alice)
    runner.claim()
    assert alice.post(f"/v1/batches/{other['batch_id']}/cancel").status_code == 202


def test_failed_jobs_are_rerun_with_an_edit(alice, repository):
    found = start(alice)
    path = f"/v1/batches/{found['batch_id']}/rerun"
    refused(lambda: alice.post(path), 409, "not_final")
    Runner().run_all(test="failure")
    edit = {"only": "failed", "edit": {"env": {"A": "1"}, "timeout_minutes": 3}, "reason": "flaky"}
    answer = alice.post(path, edit)
    assert answer.status_code == 201, answer.content
    again = answer.json()
    assert [(job["job_key"], job["taken_over"], job["conclusion"]) for job in again["jobs"]] == [
        ("build", True, "success"), ("test", False, None),
    ]  # fmt: skip
    shown = alice.get(f"/v1/batches/{again['batch_id']}").json()
    run = shown["run"]
    assert (run["parent_run_id"], run["reason"], run["edits"]) == (
        found["run_id"], "flaky", {"env": {"A": "1"}, "timeout_minutes": 3},
    )  # fmt: skip
    assert shown["rerun_of"] == found["batch_id"]
    assert (shown["trigger"]["actor"], shown["jobs"][0]["id"]) == ("token-test", found["jobs"][0]["id"])
    wrong = refused(lambda: alice.post(path, {"edit": {"runs_on": "a b"}}), 400, "invalid")
    assert list(wrong["errors"]) == ["runs_on"]


def test_a_rerun_reads_the_file_of_the_old_commit(alice, repository, origin):
    found = start(alice)
    Runner().run_all()
    origin.commit({FILE: b"on: push\njobs: wrong\n"})
    from orchestrator.repositories.mirrors import update_mirror  # noqa: PLC0415 beside its only use

    update_mirror(repository)
    again = alice.post(f"/v1/batches/{found['batch_id']}/rerun").json()
    assert WorkflowRun.objects.get(pk=again["run_id"]).head_sha == repository.commit


def test_a_run_whose_file_is_unreadable_or_wrong_is_not_rerun(alice, repository):
    for file, status, code in (
        (".shithub/workflows/none.yml", 409, "conflict"),
        (".shithub/workflows/wrong.yml", 400, "invalid"),
    ):
        run = started({"a": {"if": "false"}}, repository, workflow_file=file, head_sha=repository.commit)
        path = f"/v1/batches/{run.batch.batch_ulid}/rerun"
        refused(lambda path=path: alice.post(path), status, code)


def test_a_run_of_a_fork_is_approved(alice, repository):
    run = started(JOBS, repository, needs_approval=True, from_fork=True)
    path = f"/v1/batches/{run.batch.batch_ulid}"
    job = Job.objects.get(batch=run.batch, spec__job_key="build")
    assert alice.get(f"/v1/jobs/{job.job_ulid}").json()["pending_reason"]["code"] == "approval"
    assert alice.get(path).json()["run"]["hold"] == "approval"
    answer = alice.post(f"{path}/approve")
    assert answer.status_code == 200, answer.content
    assert (answer.json()["run"]["hold"], answer.json()["run"]["approved_by"]) == (None, "client:token test")
    assert OperatorEvent.objects.filter(action="workflow_run.approve").count() == 1
    other = started(JOBS, repository)
    refused(lambda: alice.post(f"/v1/batches/{other.batch.batch_ulid}/approve"), 409, "conflict")


def test_an_ended_run_is_pinned_and_unpinned(alice, repository):
    found = start(alice)
    path = f"/v1/batches/{found['batch_id']}"
    refused(lambda: alice.post(f"{path}/pin"), 409, "conflict")
    Runner().run_all()
    for action, pinned in (("pin", True), ("pin", True), ("unpin", False), ("unpin", False)):
        answer = alice.post(f"{path}/{action}", {"reason": "release 1.0"})
        assert (answer.status_code, answer.json()["run"]["pinned"]) == (200, pinned)
        assert alice.get(path).json()["run"]["pinned"] == pinned
    events = OperatorEvent.objects.filter(action__startswith="workflow_run.").order_by("id")
    assert [(event.action, event.actor, event.reason) for event in events] == [
        ("workflow_run.pinned", "client:token test", "release 1.0"),
        ("workflow_run.unpinned", "client:token test", "release 1.0"),
    ]
    refused(lambda: alice.post(f"{path}/pin", {"pinned": False}), 400, "unknown_field")
    WorkflowRun.objects.all().delete()
    refused(lambda: alice.post(f"{path}/pin"), 409, "conflict")  # a batch that is no workflow run


def test_checks_are_the_jobs_of_a_commit(alice, repository):
    run, runner = started(JOBS, repository), Runner()
    started(JOBS, repository, head_sha="d" * 40)
    runner.claim()
    path = f"/v1/checks?repository=alice/demo&head_sha={run.head_sha}"
    found = alice.get(path).json()["results"]
    assert [(check["name"], check["status"], check["conclusion"]) for check in found] == [
        ("test", "queued", None), ("build", "in_progress", None),
    ]  # fmt: skip
    assert found[1]["external_id"] == f"workflow_run:{run.pk}:job:build"
    assert (found[1]["run_index"], found[1]["batch_id"]) == (1, run.batch.batch_ulid)
    runner.end("build", "failure")
    found = alice.get(path).json()["results"]
    assert [(check["status"], check["conclusion"]) for check in found] == [
        ("completed", "skipped"), ("completed", "failure"),
    ]  # fmt: skip
    assert reread(run).conclusion == "failure"
    assert len(alice.get("/v1/checks").json()["results"]) == 4


@pytest.mark.parametrize(
    ("path", "query", "numbers"),
    [
        ("batches", "repository=Alice/Demo", [2, 1]),
        ("batches", "repository=alice/other", []),
        ("batches", "repository=alice", []),
        ("batches", "event=schedule", [2]),
        ("batches", "workflow_file=.shithub/workflows/nightly.yml&event=schedule", [2]),
        ("batches", "org_slug=sandtrace&project_slug=web&event=push", [1]),
        ("batches", "created_before=2020-01-01T00:00:00Z", []),
        ("checks", "status=queued", [2, 1]),
        ("checks", "status=in_progress", [1]),
        ("checks", "status=completed", []),
        ("checks", "head_sha=" + "d" * 40, [2]),
        ("checks", "workflow_file=.shithub/workflows/ci.yml", [1, 1]),
        ("checks", "repository=alice/demo&project_slug=web&org_slug=sandtrace&created_after=2020-01-01T00:00:00Z", [2, 1, 1]),
    ],
)  # fmt: skip
def test_lists_are_filtered(alice, repository, path, query, numbers):
    started(JOBS, repository)
    Runner().claim()
    started(
        {"a": None}, repository, head_sha="d" * 40, workflow_file=".shithub/workflows/nightly.yml", event="schedule"
    )
    found = alice.get(f"/v1/{path}?{query}").json()["results"]
    assert [(row["run"] if path == "batches" else row)["run_index"] for row in found] == numbers


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/checks"])
def test_lists_are_paged(alice, repository, path):
    for _ in range(2):
        started(JOBS, repository)
    whole = alice.get(path).json()["results"]
    page = alice.get(f"{path}?limit=1").json()
    found = list(page["results"])
    while page["next"]:
        page = alice.get(page["next"]).json()
        found += page["results"]
    assert found == whole
    refused(lambda: alice.get(f"{path}?colour=red"), 400, "invalid_query")


def test_the_checks_of_one_batch(alice, repository):
    run = started(JOBS, repository)
    started(JOBS, repository)
    found = alice.get(f"/v1/checks?batch_id={run.batch.batch_ulid}").json()["results"]
    assert {check["run_id"] for check in found} == {run.pk}
    refused(lambda: alice.get("/v1/checks?status=red"), 400, "invalid_query")


def test_others_see_nothing(alice, repository):
    found = start(alice)
    other = OrganizationFactory(slug="other")
    ProjectFactory(organization=other)
    stranger = Caller(api_token(other))
    path = f"/v1/batches/{found['batch_id']}"
    for call in (
        lambda: stranger.get(path),
        lambda: stranger.post(f"{path}/cancel"),
        lambda: stranger.post(f"{path}/rerun"),
        lambda: stranger.post(f"{path}/approve"),
        lambda: stranger.post(f"{path}/pin"),
        lambda: stranger.post(f"{path}/unpin"),
        lambda: stranger.post("/v1/batches", body()),
        lambda: stranger.post("/v1/batches", body(org_slug="other")),
        lambda: alice.post("/v1/batches", body(repository="alice/none")),
    ):
        refused(call, 404, "not_found")
    assert stranger.get("/v1/batches").json()["results"] == []
    assert stranger.get("/v1/checks").json()["results"] == []


def test_the_scope_decides(organization, alice, repository):
    found = start(alice)
    reader, writer = (Caller(api_token(organization, (scope,))) for scope in ("jobs:read", "jobs:write"))
    path = f"/v1/batches/{found['batch_id']}"
    assert reader.get(path).status_code == reader.get("/v1/checks").status_code == 200
    for action in ("cancel", "rerun", "approve", "pin", "unpin"):
        refused(lambda action=action: reader.post(f"{path}/{action}"), 403, "insufficient_scope")
    refused(lambda: reader.post("/v1/batches", body()), 403, "insufficient_scope")
    refused(lambda: writer.get(path), 403, "insufficient_scope")
