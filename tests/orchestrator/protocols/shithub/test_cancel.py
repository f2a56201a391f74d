"""`POST /api/v1/jobs/{id}/cancel` (contract 2.7): who may cancel what, and what the answer contains."""

import base64

import pytest
from django.test import Client

from orchestrator.core.cause import Cause
from orchestrator.protocols.shithub.clients.authentication import SCOPES_HEADER
from orchestrator.services import credentials, expiry
from runtime_jobs.models import ApiToken, Job
from runtime_jobs.states import CancelReason, JobState
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import OPERATOR, OrganizationFactory, WorkerFactory, api_token
from tests.orchestrator.protocols.shithub.conftest import error_of
from tests.orchestrator.protocols.shithub.world import actions_spec, start_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def token(run) -> str:
    return api_token(run.run.repository.project.organization, ("jobs:write",))


def path(job: object) -> str:
    return f"/api/v1/jobs/{getattr(job, 'pk', job)}/cancel"


def test_a_queued_job_ends_at_once_and_completes_its_run(run, token):
    response = Caller(token).post(path(run.job))
    assert (response.status_code, response.json()) == (
        202,
        {
            "job_id": run.job.pk,
            "run_id": run.run.pk,
            "repo_id": run.run.repository_id,
            "changed_jobs": 1,
            "run_completed": True,
            "run_conclusion": "cancelled",
        },
    )
    run.job.refresh_from_db()
    assert (run.job.state, run.job.cancel_reason) == (JobState.CANCELED, CancelReason.REQUESTED)
    assert {(step.status, step.conclusion) for step in run.job.steps.all()} == {("cancelled", "cancelled")}
    again = Caller(token).post(path(run.job))
    assert (again.status_code, again.json()["changed_jobs"], again.json()["run_completed"]) == (202, 0, True)


def test_a_running_job_is_requested_to_stop_once(runner, run, token):
    claimed = runner.client.claim()
    claimed.run()
    response = Caller(token).post(path(run.job))
    assert (response.status_code, response.json()["changed_jobs"]) == (202, 1)
    assert (response.json()["run_completed"], response.json()["run_conclusion"]) == (False, "")
    deadline = Job.objects.get(pk=run.job.pk).cancel_deadline_at
    again = Caller(token).post(path(run.job))
    assert (again.status_code, again.json()["changed_jobs"]) == (202, 0)
    assert Job.objects.get(pk=run.job.pk).cancel_deadline_at == deadline
    assert claimed.check_cancel().json()["cancelled"] is True
    assert claimed.end("cancelled", "cancelled").json()["run_conclusion"] == "cancelled"


def test_a_job_that_has_ended_stays_as_it_is(runner, run, token):
    claimed = runner.client.claim()
    claimed.end()
    with nothing_lost():
        response = Caller(token).post(path(run.job))
    assert (response.status_code, response.json()["changed_jobs"]) == (202, 0)
    assert response.json()["run_conclusion"] == "success"


def test_the_run_goes_on_while_another_job_is_open(token, run):
    second = start_run(run.run.repository, [actions_spec(), actions_spec(job_key="other")])
    response = Caller(token).post(path(second.jobs[0]))
    assert (response.json()["changed_jobs"], response.json()["run_completed"]) == (1, False)


def test_a_deaf_runner_is_forced_at_the_deadline(settings, runner, run, token):
    settings.CANCEL_DEADLINE_SECONDS = 0
    claimed = runner.client.claim()
    claimed.run()
    Caller(token).post(path(run.job))
    assert expiry.force_cancel(job_ulid=run.job.job_ulid).state == JobState.CANCELED
    error_of(claimed.log(b"late"), 404)
    assert claimed.end("cancelled", "cancelled").status_code == 200


@pytest.mark.parametrize(
    "form",
    ["Bearer {token}", "bearer {token}", "token {token}", "Basic {basic}"],
)
def test_a_token_is_accepted_in_each_form(run, token, form):
    basic = base64.b64encode(f"anybody:{token}".encode()).decode()
    headers = {"Authorization": form.format(token=token, basic=basic)}
    response = Caller().post(path(run.job), **headers)
    assert response.status_code == 202
    assert "repo:write" in response[SCOPES_HEADER].split(", ")


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "token wrong",
        "Digest {token}",
        "Basic {token}",
        "Basic !",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Bearer {worker}",
        "Bearer rto_api_" + "a" * 43,
    ],
)
def test_a_token_that_is_not_valid_is_401_with_its_challenge(run, token, header):
    headers = {"Authorization": header.format(token=token, worker=WorkerFactory().token)}
    with nothing_lost():
        response = Caller().post(path(run.job), **headers)
    error_of(response, 401)
    assert response["WWW-Authenticate"].startswith('Bearer realm="shithub", error="invalid_token"')


def test_without_a_token_the_challenge_names_no_error(run):
    response = Caller().post(path(run.job))
    error_of(response, 401)
    assert response["WWW-Authenticate"] == 'Bearer realm="shithub"'


def test_a_revoked_token_is_401(run, token):
    credentials.revoke_api_token(token_id=ApiToken.objects.get().pk, cause=Cause(OPERATOR, "test"))
    error_of(Caller(token).post(path(run.job)), 401)


def test_without_the_scope_it_is_403_with_the_accepted_one(run):
    token = api_token(run.run.repository.project.organization, ("jobs:read",))
    with nothing_lost():
        response = Caller(token).post(path(run.job))
    error_of(response, 403)
    assert response["X-Accepted-OAuth-Scopes"] == "repo:write"
    assert response[SCOPES_HEADER] == "jobs:read"


def test_a_job_of_another_tenant_is_404_as_one_that_does_not_exist(run):
    token = api_token(OrganizationFactory(slug="other"))
    with nothing_lost():
        texts = {error_of(Caller(token).post(path(job)), 404) for job in (run.job, 10**9)}
    assert len(texts) == 1


def test_a_job_of_another_type_is_404(run, token):
    from tests.factories import submitted_steps  # noqa: PLC0415

    other = submitted_steps(run.run.repository.project)
    with nothing_lost():
        error_of(Caller(token).post(path(other)), 404)


@pytest.mark.parametrize("job", ["0", "x", "-1", "9223372036854775808"])
def test_a_path_that_names_no_job_is_404(run, token, job):
    error_of(Caller(token).post(path(job)), 404)


def test_the_session_of_a_browser_is_not_accepted(run, client, django_user_model):
    client.force_login(django_user_model.objects.create(username="olga", is_staff=True, is_superuser=True))
    with nothing_lost():
        error_of(client.post(path(run.job)), 401)


def test_the_form_of_a_browser_without_its_csrf_token_is_403(run, django_user_model):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(django_user_model.objects.create(username="olga", is_staff=True, is_superuser=True))
    with nothing_lost():
        response = browser.post(f"/admin/runtime_jobs/job/{run.job.job_ulid}/cancel/", {"reason": "test"})
    assert response.status_code == 403
    run.job.refresh_from_db()
    assert run.job.state == JobState.QUEUED


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_are_405(run, token, method):
    error_of(Caller(token).call(method, path(run.job)), 405)
