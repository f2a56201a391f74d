"""A new attempt that people ask for passes the same rules as a new job: retry, resend, rerun, in the API and the admin."""

import pytest
from django.contrib.messages import get_messages

from orchestrator.services import cancellation, expiry, job_end, retries
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Batch, Job, Organization, Plan, Project
from runtime_jobs.states import FailureReason
from tests.api_client import refused
from tests.factories import (
    ALICE,
    OPERATOR,
    OrganizationFactory,
    PoolFactory,
    ProjectFactory,
    claimed,
    spec,
    submitted,
    submitted_steps,
)
from tests.orchestrator.services.test_batches import submitted as submit_batch

pytestmark = pytest.mark.django_db
JOBS, ANY_JOBS = "/v1/runtime/jobs", "/v1/jobs"

# What an operator changes after the job was submitted, and the code of the refusal.
CHANGES = {
    "feature_not_enabled": lambda: Organization.objects.update(hosted_runtime_analysis=False),
    "project_not_enabled": lambda: Project.objects.update(enabled=False),
    "repository_not_allowed": lambda: Project.objects.update(repositories=["cc-consulting-nv/other"]),
    "timeout_above_plan": lambda: Plan.objects.update(max_timeout_seconds=10),
}
STATUS = {"timeout_above_plan": 400}
MESSAGES = {
    "feature_not_enabled": "Hosted runtime analysis is not enabled for the organization sandtrace.",
    "project_not_enabled": "The project sandtrace/web does not exist or is not enabled.",
    "repository_not_allowed": "The project sandtrace/web does not allow the repository cc-consulting-nv/web.",
    "timeout_above_plan": "timeout_seconds: the plan allows at most 10 seconds.",
}


@pytest.fixture
def project(organization):
    return organization.projects.get()


@pytest.fixture
def failed(project):
    """A job that failed, with a run that could not be uploaded."""
    submitted(project)
    claim = claimed()
    return job_end.fail(
        lease_ulid=claim.lease.lease_ulid,
        worker=claim.lease.worker,
        reason=FailureReason.UPLOAD_FAILED,
        unsent_run={"schema_version": "run.v1"},
    )


@pytest.mark.parametrize("code", CHANGES)
def test_a_retry_is_refused_as_a_submit_is(alice, failed, code):
    CHANGES[code]()
    path = f"{JOBS}/{failed.job_ulid}/retry"
    refused(lambda: alice.post(path, {"reason": "again"}), STATUS.get(code, 403), code)
    assert Job.objects.count() == 1


@pytest.mark.parametrize("code", CHANGES)
def test_a_resend_is_refused_as_a_submit_is(failed, code):
    CHANGES[code]()
    with pytest.raises(LifecycleError) as refusal:
        retries.reupload(job_ulid=failed.job_ulid, actor=OPERATOR, reason="again")
    assert refusal.value.code == code
    assert Job.objects.count() == 1


@pytest.mark.parametrize("action", ["retry", "reupload"])
@pytest.mark.parametrize("code", CHANGES)
def test_the_buttons_of_the_admin_are_refused_and_say_why(admin_client, failed, action, code):
    CHANGES[code]()
    answer = admin_client.post(f"/admin/runtime_jobs/job/{failed.job_ulid}/{action}/", {"reason": "again"})
    [message] = [str(one) for one in get_messages(answer.wsgi_request)]
    assert message == f"{failed.job_ulid}: {MESSAGES[code]}"
    assert Job.objects.count() == 1


def test_of_many_in_the_admin_those_that_may_are_retried(admin_client, failed):
    other = ProjectFactory(slug="other", organization=OrganizationFactory(slug="other"))
    job = submitted(other)
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=0)
    Project.objects.filter(slug="web").update(enabled=False)
    address = f"/admin/runtime_jobs/job/bulk/retry/?job={failed.job_ulid}&job={job.job_ulid}"
    answer = admin_client.post(address, {"reason": "again"})
    assert len(get_messages(answer.wsgi_request)) == 2
    assert list(Job.objects.exclude(retry_of_job_ulid=None).values_list("org_slug", flat=True)) == ["other"]


@pytest.mark.parametrize("code", CHANGES)
def test_a_batch_is_rerun_by_todays_rules(admin_client, alice, project, code):
    batch = submit_batch(project, spec()).batch
    CHANGES[code]()
    admin_client.post(f"/admin/runtime_jobs/batch/{batch.batch_ulid}/rerun/", {"reason": "again"})
    answer = alice.post(f"/api/v1/runs/{batch.batch_ulid}/rerun", {}, **{"Idempotency-Key": "k"})
    assert answer.status_code in {400, 403}
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)


def test_a_new_attempt_goes_into_the_pool_that_the_project_has_now(alice, failed):
    PoolFactory(slug="private", least_isolation="restricted")
    Project.objects.update(pool="private")
    made = alice.post(f"{JOBS}/{failed.job_ulid}/retry", {"reason": "again"}).json()
    job = Job.objects.get(job_ulid=made["job_id"])
    assert (job.pool, job.least_isolation) == ("private", "restricted")


def test_a_retry_that_was_made_is_answered_again_whatever_has_changed_since(alice, failed):
    path, key = f"{JOBS}/{failed.job_ulid}/retry", {"Idempotency-Key": "k"}
    first = alice.post(path, {"reason": "again"}, **key)
    CHANGES["project_not_enabled"]()
    again = alice.post(path, {"reason": "again"}, **key)
    assert (again.status_code, again.json()["job_id"]) == (first.status_code, first.json()["job_id"])


def test_an_automatic_retry_is_no_new_request(failed, project):
    """The crash of a worker is no decision of the client: the job that was admitted runs on, as a queued one does."""
    submitted(project)
    claim = claimed()
    CHANGES["project_not_enabled"]()
    expiry.expire(job_ulid=claim.job.job_ulid, now=claim.lease.expires_at)
    assert Job.objects.filter(retry_of_job_ulid=claim.job.job_ulid).exists()


class TestHostedAnalysis:
    """Only jobs of type `runtime` are hosted runtime analysis."""

    def test_other_types_are_submitted_and_retried_without_it(self, alice, project):
        CHANGES["feature_not_enabled"]()
        job = submitted_steps(project)
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=0)
        assert alice.post(f"{ANY_JOBS}/{job.job_ulid}/retry", {"reason": "again"}).status_code == 201

    def test_type_runtime_needs_it(self, project):
        CHANGES["feature_not_enabled"]()
        with pytest.raises(LifecycleError) as refusal:
            submitted(project)
        assert refusal.value.code == "feature_not_enabled"
