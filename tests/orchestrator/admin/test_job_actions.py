"""Cancel, retry, revoke: with a reason, by those who may, each job on its own, each refusal shown."""

import pytest
from django.conf import settings
from django.contrib.messages import get_messages
from django.db import OperationalError
from django.test import Client

from orchestrator.admin.jobs import actions
from orchestrator.services import job_end
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import FailureReason
from tests.factories import WorkerFactory, claimed, submitted, submitted_steps
from tests.orchestrator.admin.conftest import client_of, person

LIST = "/admin/runtime_jobs/job/"
WHY = {"reason": "wrong branch"}


@pytest.fixture
def worker(db):
    return WorkerFactory()


def question(action: str, *jobs: Job) -> str:
    if len(jobs) == 1:
        return f"{LIST}{jobs[0].job_ulid}/{action}/"
    return f"{LIST}bulk/{action}/?" + "&".join(f"job={job.job_ulid}" for job in jobs)


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def failed(worker) -> Job:
    submitted()
    taken = claimed(worker)
    return job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)


def uploaded(worker) -> Job:
    submitted()
    taken = claimed(worker)
    run = f"run_{taken.job.job_ulid}"
    return job_end.complete(lease_ulid=taken.lease.lease_ulid, worker=worker, ingest_run_id=run)


def test_a_waiting_job_is_canceled_with_the_operators_name_and_reason(operator, worker):
    job = submitted()
    assert operator.get(question("cancel", job)).status_code == 200
    answer = operator.post(question("cancel", job), WHY)
    assert answer["Location"] == f"{LIST}{job.job_ulid}/change/"
    assert messages_of(answer) == [f"{job.job_ulid}: canceled."]
    job.refresh_from_db()
    assert (job.state, job.cancel_reason, job.cancel_actor) == ("canceled", "operator", "operator:otto")
    event = JobEvent.objects.filter(job=job).latest("seq")
    assert (event.actor_kind, event.actor_id, event.payload_json["message"]) == ("operator", "otto", "wrong branch")


def test_the_worker_of_a_running_job_is_asked_to_stop(operator, worker):
    submitted()
    job = claimed(worker).job
    assert messages_of(operator.post(question("cancel", job), WHY)) == [
        f"{job.job_ulid}: cancel requested from the worker."
    ]
    job.refresh_from_db()
    assert job.state == "starting"
    assert (job.cancel_deadline_at - job.cancel_requested_at).total_seconds() == settings.CANCEL_DEADLINE_SECONDS


def test_a_failed_job_is_queued_again(operator, worker):
    job = failed(worker)
    answer = operator.post(question("retry", job), WHY)
    newer = Job.objects.get(retry_of_job_ulid=job.job_ulid)
    assert messages_of(answer) == [f"{job.job_ulid}: retried as {newer.job_ulid}."]
    assert newer.retry_kind == "manual"
    assert JobEvent.objects.get(job=newer, event_type="job.retried").payload_json["reason"] == "wrong branch"


def test_a_run_that_was_kept_is_sent_again(operator, worker):
    submitted()
    taken = claimed(worker)
    job = job_end.fail(
        lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.UPLOAD_FAILED, unsent_run={"x": 1}
    )
    assert f"/{job.job_ulid}/reupload/" in operator.get(f"{LIST}{job.job_ulid}/change/").content.decode()
    answer = operator.post(question("reupload", job), WHY)
    newer = Job.objects.get(retry_of_job_ulid=job.job_ulid)
    assert messages_of(answer) == [f"{job.job_ulid}: re-upload queued as {newer.job_ulid}."]
    assert "resend" in newer.requirements


def test_a_lease_is_revoked(operator, worker):
    submitted()
    job = claimed(worker).job
    answer = operator.post(question("revoke", job), WHY)
    assert messages_of(answer) == [f"{job.job_ulid}: lease revoked; the job is now failed."]
    job.refresh_from_db()
    assert (job.failure_reason, job.failure_message) == ("worker_lost", "Revoked: wrong branch")


@pytest.mark.parametrize(
    ("action", "make", "refusal"),
    [
        ("cancel", uploaded, "The job has already ended: it is uploaded."),
        ("cancel", failed, "The job has already ended: it is failed."),
        ("retry", uploaded, "The job succeeded and cannot be retried."),
        ("retry", lambda _: submitted(), "The job has not ended: it is queued. Cancel it first."),
        ("revoke", lambda _: submitted(), "The job has no open lease. Nothing was revoked."),
        ("reupload", failed, "The job has no run that waits for an upload."),
        ("revoke", failed, "The job has no open lease. Nothing was revoked."),
    ],
)
def test_a_refusal_is_shown(action, make, refusal, operator, worker):
    job = make(worker)
    assert messages_of(operator.post(question(action, job), WHY)) == [f"{job.job_ulid}: {refusal}"]


def test_a_second_retry_is_refused_and_shown(operator, worker):
    job = failed(worker)
    operator.post(question("retry", job), WHY)
    words = messages_of(operator.post(question("retry", job), WHY))
    successor = Job.objects.get(retry_of_job_ulid=job.job_ulid)
    assert f"{job.job_ulid}: The job has a newer attempt. Retry {successor.job_ulid}." in words
    assert Job.objects.filter(root_job_ulid=job.job_ulid).count() == 2


def test_of_many_each_is_done_or_refused_on_its_own(operator, worker):
    first, ended, last = submitted(), uploaded(worker), submitted()
    first.refresh_from_db()  # claimed and uploaded: the first in the queue was taken
    waiting = [submitted(), submitted()]
    answer = operator.post(question("cancel", waiting[0], first, waiting[1]), WHY)
    assert messages_of(answer) == [
        f"{waiting[0].job_ulid}: canceled.",
        f"{waiting[1].job_ulid}: canceled.",
        f"{first.job_ulid}: The job has already ended: it is uploaded.",
    ]
    assert [Job.objects.get(pk=job.pk).state for job in waiting] == ["canceled", "canceled"]
    assert (ended.job_ulid, Job.objects.get(pk=last.pk).state) == (first.job_ulid, "queued")


def test_a_busy_database_is_shown_and_stops_nobody_else(operator, worker, monkeypatch):
    busy, free = submitted(), submitted()

    def act(job_ulid, actor, reason):
        if job_ulid == busy.job_ulid:
            raise OperationalError("lock timeout")
        return "canceled"

    action = actions.JobAction("cancel", "Cancel", "", act)
    monkeypatch.setitem(actions.ACTIONS, "cancel", action)
    words = messages_of(operator.post(question("cancel", busy, free), WHY))
    assert words == [
        f"{free.job_ulid}: canceled.",
        f"{busy.job_ulid}: The database is busy. Nothing was changed; try again.",
    ]


@pytest.mark.parametrize("action", ["cancel", "retry", "revoke"])
@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "nul\0"])
def test_nothing_is_done_without_a_reason(action, reason, operator, worker):
    submitted()
    job = claimed(worker).job if action != "retry" else failed(worker)
    before = Job.objects.filter(pk=job.pk).values().get()
    answer = operator.post(question(action, job), {"reason": reason})
    assert answer.status_code == 400
    assert Job.objects.filter(pk=job.pk).values().get() == before
    assert Job.objects.count() == 1 + (action == "retry")


@pytest.mark.parametrize("action", ["cancel", "retry", "reupload", "revoke"])
def test_whoever_may_only_look_has_no_button_and_no_way_around_it(action, viewer, worker):
    first, second = submitted(), submitted()
    page = viewer.get(f"{LIST}{first.job_ulid}/change/").content.decode()
    assert f"/{action}/" not in page
    assert "_selected" not in viewer.get(LIST).content.decode().replace("_selected_action", "")
    for address in (question(action, first), question(action, first, second)):
        assert viewer.get(address).status_code == 403
        assert viewer.post(address, WHY).status_code == 403
    selected = {"action": f"{action}_selected", "_selected_action": [first.pk, second.pk]}
    assert "bulk" not in viewer.post(LIST, selected).headers.get("Location", "")
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}


def test_whoever_may_operate_but_is_no_staff_stays_outside(worker):
    user = person("nora", "runtime_jobs.operate_job", "runtime_jobs.view_job")
    user.is_staff = False
    user.save()
    first, second = submitted(), submitted()
    for page in (question("cancel", first), question("cancel", first, second), f"{LIST}{first.job_ulid}/log/"):
        assert client_of(user).get(page)["Location"].startswith("/admin/login/")
        assert client_of(user).post(page, WHY)["Location"].startswith("/admin/login/")
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}


@pytest.mark.parametrize("many", [False, True])
def test_a_form_from_another_site_is_refused(many, worker):
    job = submitted()
    user = person("otto", "runtime_jobs.view_job", "runtime_jobs.operate_job")
    client: Client = client_of(user, enforce_csrf_checks=True)
    address = f"{LIST}bulk/cancel/?job={job.job_ulid}" if many else question("cancel", job)
    assert client.post(address, WHY).status_code == 403
    assert Job.objects.get().state == "queued"


def test_the_list_asks_before_it_does_anything(operator, worker):
    jobs = [submitted(), submitted()]
    selected = {"action": "cancel_selected", "_selected_action": [job.pk for job in jobs]}
    answer = operator.post(f"{LIST}?status=queued", selected)
    assert answer.status_code == 302
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}
    page = operator.get(answer["Location"])
    assert [row.job_ulid for row in page.context["jobs"]] == [job.job_ulid for job in reversed(jobs)]
    done = operator.post(answer["Location"], WHY)
    assert done["Location"] == f"{LIST}?status=queued"
    assert set(Job.objects.values_list("state", flat=True)) == {"canceled"}


def test_a_job_without_a_repository_has_a_dash_and_not_a_slash(operator, worker):
    jobs = [submitted_steps(), submitted()]
    page = operator.get(question("cancel", *jobs))
    assert [row.repository for row in page.context["jobs"]] == ["cc-consulting-nv/web", "-"]
    assert "<td>/</td>" not in page.content.decode()


def test_more_than_a_hundred_at_a_time_are_refused(operator, worker, monkeypatch):
    monkeypatch.setattr("orchestrator.admin.jobs.admin.MAX_JOBS", 2)
    jobs = [submitted() for _ in range(3)]
    selected = {"action": "cancel_selected", "_selected_action": [job.pk for job in jobs]}
    assert messages_of(operator.post(LIST, selected)) == ["Select at most 2 jobs."]
    across = {"action": "cancel_selected", "_selected_action": [jobs[0].pk], "select_across": "1"}
    assert messages_of(operator.post(LIST, across))[-1] == "Select at most 2 jobs."
    names = "&".join(f"job={submitted().job_ulid}" for _ in range(actions.MAX_JOBS + 1))
    assert operator.post(f"{LIST}bulk/cancel/?{names}", WHY).status_code == 400


@pytest.mark.parametrize("query", ["", "?job=", "?job=1", "?job=rtj_x", "?job=rtj_01k&job='"])
def test_jobs_are_named_by_their_ids(query, operator, worker):
    assert operator.get(f"{LIST}bulk/cancel/{query}").status_code == 400


def test_what_does_not_exist_is_not_found(operator, worker):
    assert operator.get(f"{LIST}rtj_{'0' * 26}/cancel/").status_code == 404
    assert operator.get(f"{LIST}bulk/explode/?job=rtj_{'0' * 26}").status_code == 404


def test_only_fitting_buttons_are_shown(olga, worker):
    def buttons(job):
        page = olga.get(f"{LIST}{job.job_ulid}/change/").content.decode()
        return {action for action in ("cancel", "retry", "reupload", "revoke") if f"/{job.job_ulid}/{action}/" in page}

    assert buttons(uploaded(worker)) == set()
    lost = failed(worker)
    assert buttons(lost) == {"retry"}
    olga.post(question("retry", lost), WHY)
    assert buttons(lost) == set()
    running = claimed(worker).job
    assert buttons(running) == {"cancel", "revoke"}
    assert buttons(submitted()) == {"cancel"}
