"""The webhook: the effect of a delivery, and its response."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from orchestrator.maintenance.pruning import PruningTask
from orchestrator.protocols.github import handler
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.protocols.github.wire import run_state
from orchestrator.services import cancellation, job_end, retries
from runtime_jobs.models import Batch, Job
from runtime_jobs.states import FailureReason
from tests.api_client import Caller, problem_of
from tests.db_snapshot import nothing_lost
from tests.factories import OPERATOR, WorkerFactory, api_token, claimed
from tests.orchestrator.protocols.github.conftest import COMMIT, PATH, deliver, new_secret, ready

pytestmark = pytest.mark.django_db


def rows():
    return list(WebhookDelivery.objects.order_by("id").values_list("outcome", flat=True))


def test_a_pull_request_becomes_a_run_of_the_configured_command(github, project):
    response = github("pull_request.opened")
    job, batch, row = Job.objects.get(), Batch.objects.get(), WebhookDelivery.objects.get()
    assert (response.status_code, response.json()) == (201, {"run_id": batch.batch_ulid, "state": "QUEUED"})
    assert (job.command_json, job.working_directory, job.timeout_seconds) == (["pnpm", "install"], ".", 300)
    assert (job.trigger_kind, job.trigger_actor, job.pull_request_number) == ("pull_request", "maria-k", 98)
    assert (job.git_ref, job.git_commit) == ("refs/pull/98/head", COMMIT)
    assert (job.batch, job.allow_network, job.org_slug, job.project_slug) == (batch, True, "sandtrace", "web")
    assert (batch.git_commit, batch.details["event_key"], batch.details["from_fork"]) == (COMMIT, row.event_key, False)
    assert (row.outcome, row.job_ulid, row.batch_ulid) == ("created", job.job_ulid, batch.batch_ulid)
    assert job.events.get().payload_json["trigger"] == "pull_request"


def test_a_push_becomes_a_run_that_the_native_api_shows(github, project):
    assert github("push.branch").status_code == 201
    alice = Caller(api_token(project.organization))
    shown = alice.get("/v1/runtime/jobs?trigger_kind=push").json()["results"]
    assert [row["trigger"] for row in shown] == [{"kind": "push", "actor": "maria-k"}]


def test_a_form_with_the_payload_is_as_good(github):
    assert github("pull_request.opened", form=True).status_code == 201
    assert Job.objects.get().git_commit == COMMIT


def test_a_forks_code_gets_no_network(github):
    assert github("pull_request.fork").status_code == 201
    job = Job.objects.get()
    assert (job.allow_network, job.repo_owner, job.trigger_actor) == (False, "cc-consulting-nv", "stranger")


@pytest.mark.parametrize("name", ["ping", "push.deleted", "push.tag", "pull_request.closed"])
def test_what_makes_no_run_is_taken_without_a_word(github, name):
    response = github(name)
    assert (response.status_code, response.content) == (202, b"")
    row = WebhookDelivery.objects.get()
    assert (row.outcome, row.project_slug, bool(row.reason)) == ("ignored", "web", True)
    assert not Job.objects.exists()


def test_a_push_makes_no_run_where_the_project_does_not_want_it(github, project):
    project.push_enabled = False
    project.save()
    assert (github("push.branch").content, rows()) == (b"", ["ignored"])
    assert github("pull_request.opened").status_code == 201


def test_the_same_event_again_is_the_same_run(github):
    """Opened again, the same head: the contract knows repository, commit, event and number."""
    first = github("pull_request.opened").json()
    again = github("pull_request.reopened")
    assert (again.status_code, again.json()) == (202, first)
    assert rows() == ["created", "duplicate"]
    assert Job.objects.count() == Batch.objects.count() == 1
    assert github("push.branch").status_code == 201, "the same commit, another event"


def test_the_same_delivery_again_is_the_same_run_and_leaves_no_row(github):
    name = {"X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    first = github("pull_request.opened", changes=name).json()
    with nothing_lost():
        again = github("pull_request.opened", changes=name)
    assert (again.status_code, again.json()) == (202, first)


def test_a_delivery_counts_once_whatever_it_says_the_second_time(github):
    name = {"X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    first = github("pull_request.opened", changes=name).json()
    assert github("push.branch", changes=name).json() == first
    assert Job.objects.count() == 1


def test_a_delivery_without_a_name_is_known_by_what_it_says(github):
    first = github("pull_request.opened", changes={"X-GitHub-Delivery": None})
    assert (first.status_code, github("pull_request.opened", changes={"X-GitHub-Delivery": None}).status_code) == (
        201,
        202,
    )


def test_a_duplicate_gets_the_state_of_the_run(github):
    github("pull_request.opened")
    lease, worker = claimed(holder := WorkerFactory()).lease, holder
    assert github("pull_request.opened").json()["state"] == "RUNNING"
    job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR, message="")
    assert github("pull_request.opened").json()["state"] == "FAILED"
    retries.retry(job_ulid=Job.objects.get().job_ulid, actor=OPERATOR, reason="again")
    assert github("pull_request.opened").json()["state"] == "QUEUED", "the newest attempt is the run's"
    newest = Job.objects.latest("id")
    claimed(worker)
    cancellation.cancel(job_ulid=newest.job_ulid, actor=OPERATOR, deadline_seconds=60)
    newest.refresh_from_db()
    assert run_state(newest) == "CANCEL_REQUESTED"


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("enabled", False, "project_not_enabled"),
        ("configured_timeout_seconds", 100_000, "timeout_above_plan"),
        ("configured_command", ["x" * 1025], "invalid"),
        ("configured_directory", "../..", "invalid"),
    ],
)
def test_a_refusal_is_recorded_and_can_be_delivered_again(github, project, column, value, code):
    before = getattr(project, column)
    name = {"X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    setattr(project, column, value)
    project.save()
    refused = github("pull_request.opened", changes=name)
    assert (refused.status_code, refused.json()) == (202, {"refused": code})
    assert (rows(), Job.objects.count(), Batch.objects.count()) == (["refused"], 0, 0)
    assert WebhookDelivery.objects.get().reason.startswith(code)
    setattr(project, column, before)
    project.save()
    assert github("pull_request.opened", changes=name).status_code == 201
    assert rows() == ["created"], "in its own row"


def test_without_a_command_nothing_runs_until_there_is_one(github, project):
    name = {"X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    project.configured_command = []
    project.save()
    assert (github("push.branch", changes=name).status_code, rows()) == (202, ["ignored"])
    project.configured_command = ["make"]
    project.save()
    assert (github("push.branch", changes=name).status_code, rows()) == (201, ["created"])


@pytest.mark.parametrize("broken", ["_create_batch", "save_delivery"])
def test_after_a_failure_of_ours_the_delivery_sent_again_makes_the_run(github, monkeypatch, broken):
    """Nothing of the first try is left: not the job without its batch, not the row without its job."""
    name = {"X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    with monkeypatch.context() as patch:

        def fails(*_, **__):
            raise RuntimeError

        patch.setattr(handler, broken, fails)
        with nothing_lost():
            response = github("pull_request.opened", changes=name)
        assert (response.status_code, problem_of(response)["code"]) == (500, "internal_error")
    assert github("pull_request.opened", changes=name).status_code == 201
    assert rows() == ["created"]


def test_the_database_holds_one_run_for_an_event(github):
    github("pull_request.opened")
    row = WebhookDelivery.objects.get()
    row.pk, row.delivery_id = None, "another"
    with pytest.raises(IntegrityError, match="one_job_per_event"), transaction.atomic():
        row.save()


@pytest.mark.parametrize("days", [29, 31])
def test_the_clock_forgets_deliveries_and_keeps_their_runs(github, days):
    github("pull_request.opened")
    row = WebhookDelivery.objects.get()
    deleted = PruningTask().delete_all(now=row.received_at + timedelta(days=days))
    assert deleted["webhook_deliveries"] == (days > 30)
    assert Job.objects.count() == 1


def test_several_projects_may_run_one_repository_with_the_installations_secret(settings, project):
    settings.GITHUB_WEBHOOK_SECRET = "of the whole installation"
    ready("other")
    ready("asleep", enabled=False)
    response = deliver("pull_request.opened", settings.GITHUB_WEBHOOK_SECRET)
    assert (response.status_code, rows()) == (201, ["created", "created"])
    assert set(Job.objects.values_list("org_slug", flat=True)) == {"sandtrace", "other"}
    assert deliver("pull_request.opened", settings.GITHUB_WEBHOOK_SECRET).status_code == 202


def test_what_the_installations_secret_signed_for_nobody_is_written_down(settings, db):
    settings.GITHUB_WEBHOOK_SECRET = "of the whole installation"
    assert deliver("pull_request.opened", settings.GITHUB_WEBHOOK_SECRET).status_code == 202
    row = WebhookDelivery.objects.get()
    assert (row.outcome, row.org_slug, row.repository) == ("ignored", "", "cc-consulting-nv/web")
    assert deliver("ping", settings.GITHUB_WEBHOOK_SECRET, body={"zen": "x"}).status_code == 202


def test_only_the_project_whose_secret_it_is_runs(project, secret):
    other = ready("other")
    new_secret(other)
    assert deliver("pull_request.opened", secret).status_code == 201
    assert [job.org_slug for job in Job.objects.all()] == ["sandtrace"]
    assert {row.org_slug for row in WebhookDelivery.objects.all()} == {"sandtrace"}


def test_a_repository_by_its_owners_star_and_in_other_letters(github, project):
    project.repositories = ["CC-Consulting-NV/*"]
    project.save()
    assert github("push.branch").status_code == 201


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_any_other_method_is_refused_before_anything_else(db, method):
    response = Client().generic(method, PATH, b"{}", content_type="application/json")
    assert (response.status_code, response["Allow"]) == (405, "POST")
