"""The pages of batches: state, jobs, and the buttons Cancel and Rerun."""

import re

import pytest
from django.contrib.auth.models import Permission

from orchestrator.admin.jobs.batches import COLOURS
from orchestrator.services import job_end
from orchestrator.services.batches import OPTIONAL, state_of
from runtime_jobs.batch_state import BatchState
from runtime_jobs.models import Batch
from runtime_jobs.states import FailureReason
from tests.factories import ProjectFactory, WorkerFactory, claimed, spec, steps_spec
from tests.orchestrator.services.test_batches import submitted

pytestmark = pytest.mark.django_db
LIST = "/admin/runtime_jobs/batch/"


@pytest.fixture
def batch():
    return submitted(None, steps_spec(name="unit <b>"), spec()).batch


def text(response):
    assert response.status_code == 200, response.content
    return response.content.decode()


def test_the_list_says_what_each_has_come_to(admin_client, batch, django_assert_max_num_queries):
    project = ProjectFactory(slug="other")
    for _ in range(5):
        submitted(project)
    with django_assert_max_num_queries(12):
        page = text(admin_client.get(LIST))
    assert batch.batch_ulid in page
    assert page.count("queued") >= 6


def test_the_page_names_its_jobs_and_escapes_what_they_are_called(admin_client, batch):
    page = text(admin_client.get(f"{LIST}{batch.batch_ulid}/change/"))
    assert all(job.job_ulid in page for job in batch.jobs.all())
    assert "unit &lt;b&gt;" in page
    assert "pnpm install" in page


def test_the_state_of_a_batch_is_a_word_on_its_page_too(admin_client):
    """The page displayed `(BatchState.FAILED, 'failed')`."""
    batch = submitted(None, steps_spec()).batch
    worker = WorkerFactory()
    lease = claimed(worker, job_types=("steps",)).lease.lease_ulid
    job_end.fail(lease_ulid=lease, worker=worker, reason=FailureReason.COMMAND_FAILED, exit_code=2)
    page = text(admin_client.get(f"{LIST}{batch.batch_ulid}/change/"))
    assert "BatchState" not in page
    assert re.search(r'"readonly[^>]*>\s*failed\s*<', page), "the state"
    listed = text(admin_client.get(LIST))
    assert "Batches" in listed
    assert "Batchs" not in listed


def test_a_cancel_asks_why_and_reaches_every_job(admin_client, batch):
    worker = WorkerFactory()
    claimed(worker, job_types=("steps",))
    path = f"{LIST}{batch.batch_ulid}/cancel/"
    assert "asked to stop" in text(admin_client.get(path))
    assert admin_client.post(path, {"reason": ""}).status_code == 400
    assert state_of(batch) == "running"
    assert admin_client.post(path, {"reason": "wrong commit"}).status_code == 302
    found = Batch.objects.get()
    assert (state_of(found), found.cancel_reason) == ("cancel_requested", "batch_canceled")
    assert set(found.jobs.values_list("cancel_actor", "cancel_message")) == {("operator:admin", "wrong commit")}


def test_it_is_run_again_with_a_reason(admin_client, batch):
    path = f"{LIST}{batch.batch_ulid}/rerun/"
    assert admin_client.post(path, {"reason": "flaky"}).status_code == 302
    again = Batch.objects.get(rerun_of=batch.batch_ulid)
    assert again.details == {"reason": "flaky"}
    assert again.jobs.count() == 2
    assert OPTIONAL not in again.details


def test_what_has_ended_has_no_cancel(admin_client):
    batch = submitted(None, steps_spec()).batch
    worker = WorkerFactory()
    assert "/cancel/" in text(admin_client.get(f"{LIST}{batch.batch_ulid}/change/"))
    job_end.complete(lease_ulid=claimed(worker, job_types=("steps",)).lease.lease_ulid, worker=worker)
    assert "/cancel/" not in text(admin_client.get(f"{LIST}{batch.batch_ulid}/change/"))
    admin_client.post(f"{LIST}{batch.batch_ulid}/cancel/", {"reason": "late"})
    assert state_of(batch) == "succeeded"


def test_who_may_only_look_finds_no_buttons(client, batch, django_user_model):
    looker = django_user_model.objects.create_user("lou", is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_batch"))
    client.force_login(looker)
    assert "/cancel/" not in text(client.get(f"{LIST}{batch.batch_ulid}/change/"))
    for action in ("cancel", "rerun"):
        assert client.post(f"{LIST}{batch.batch_ulid}/{action}/", {"reason": "x"}).status_code == 403
    assert Batch.objects.get().cancel_requested_at is None


def test_a_job_of_steps_has_its_steps_and_its_batch_on_its_page(admin_client):
    batch = submitted(None, steps_spec(steps=("make <all>", "make test"), environment={"TOKEN": "s3cret"})).batch
    page = text(admin_client.get(f"/admin/runtime_jobs/job/{batch.jobs.get().job_ulid}/change/"))
    for shown in ("make &lt;all&gt;", "make test", "TOKEN", f"{LIST}{batch.batch_ulid}/change/"):
        assert shown in page
    assert "s3cret" not in page
    assert batch.jobs.get().job_ulid in text(
        admin_client.get(f"/admin/runtime_jobs/job/?batch__batch_ulid={batch.batch_ulid}")
    )


@pytest.mark.parametrize("state", BatchState)
def test_every_state_has_a_colour(state):
    assert state in COLOURS
