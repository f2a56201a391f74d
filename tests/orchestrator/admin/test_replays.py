"""The page of replays, and the button on the page of a job."""

import pytest
from django.contrib.messages import get_messages

from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence.replay_models import Replay
from orchestrator.evidence.replay_tasks import compare_ended_replays
from orchestrator.services import job_end
from runtime_jobs.models import Job
from tests.factories import WorkerFactory, claimed, submitted_steps
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address

pytestmark = pytest.mark.django_db
WHY = {"reason": "audit", "sealed": "on"}


def executed(worker, findings=3, **spec) -> Job:
    submitted_steps(**spec)
    return complete(worker, findings)


def complete(worker, findings) -> Job:
    lease = claimed(worker, job_types=("steps",)).lease.lease_ulid
    return job_end.complete(lease_ulid=lease, worker=worker, exit_code=0, result={"outputs": {"findings": findings}})


def button(job: Job) -> str:
    return f"/admin/runtime_jobs/job/{job.job_ulid}/replay/"


def text_of(response) -> str:
    return response.content.decode()


def test_the_button_queues_a_replay_whose_verdict_the_page_displays(operator):
    worker = WorkerFactory()
    job = executed(worker)
    assert button(job) in text_of(operator.get(f"/admin/runtime_jobs/job/{job.job_ulid}/change/"))
    assert operator.get(button(job)).status_code == 200
    response = operator.post(button(job), WHY)
    row = Replay.objects.get()
    assert [str(message) for message in get_messages(response.wsgi_request)] == [
        f"{job.job_ulid}: replayed as {row.job_ulid}."
    ]
    assert (row.is_sealed, row.reason, row.requested_by) == (True, "audit", "operator:otto")
    complete(worker, 4)
    compare_ended_replays(RowRunner())
    admin = client_of(person("rita", "orchestrator.view_replay", "runtime_jobs.view_job"))
    for page in (address(Replay, "changelist"), address(Replay, "change", row.pk)):
        text = text_of(admin.get(page))
        for expected in ("diverged", row.job_ulid, job.job_ulid, "/outputs/outputs/findings"):
            assert expected in text, (page, expected)
    assert "operator otto" in text
    assert job.job_ulid in text_of(operator.get(f"/admin/runtime_jobs/job/{row.job_ulid}/change/"))


def test_the_filter_by_verdict(operator):
    job = executed(WorkerFactory())
    operator.post(button(job), WHY)
    admin = client_of(person("rita", "orchestrator.view_replay"))
    row, page = Replay.objects.get(), address(Replay, "changelist")
    assert row.job_ulid in text_of(admin.get(f"{page}?verdict=pending"))
    assert row.job_ulid not in text_of(admin.get(f"{page}?verdict=match"))


def test_a_refusal_is_displayed(operator):
    job = executed(WorkerFactory(), allow_network=True)
    response = operator.post(button(job), WHY)
    (message,) = get_messages(response.wsgi_request)
    assert "It had access to the network." in str(message)
    operator.post(button(job), {"reason": "audit"})
    assert Replay.objects.get().is_sealed is False


def test_it_takes_the_permission():
    page = address(Replay, "changelist")
    assert client_of(person("nina", "runtime_jobs.view_job")).get(page).status_code == 403
