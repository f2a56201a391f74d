"""The pages of workflow runs: jobs and needs, the buttons of each state, and rejected files with their diagnostics."""

import re

import pytest

from runtime_jobs.models import OperatorEvent, RejectedWorkflow, WorkflowRun
from runtime_jobs.workflows.parsing import parse_workflow
from tests.factories import COMMIT, ProjectFactory
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import FILE, Runner, reread, started, states, workflow_text

pytestmark = pytest.mark.django_db
LIST = "/admin/runtime_jobs/workflowrun/"
JOBS = {"build": {"name": "'Build <b>'"}, "test": {"needs": "build"}}


@pytest.fixture
def folders(settings, tmp_path):
    (tmp_path / "origins").mkdir()
    settings.REPOSITORY_ROOT = str(tmp_path / "origins")
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    return tmp_path


def text(response):
    assert response.status_code == 200, response.content
    return response.content.decode()


def page_of(client, run):
    return text(client.get(f"{LIST}{run.pk}/change/"))


def press(client, run, button, reason="because"):
    return text(client.post(f"{LIST}{run.pk}/{button}/", {"reason": reason}, follow=True))


def test_the_list_has_the_state_of_each_run(admin_client, django_assert_max_num_queries):
    for _ in range(5):
        run = started(JOBS, top={"concurrency": "x"})
    with django_assert_max_num_queries(12):
        page = text(admin_client.get(LIST))
    assert "alice/demo #5" in page
    assert "concurrency" in page
    assert run.head_sha[:12] in page


def test_the_page_has_the_jobs_in_order_and_escapes_their_names(admin_client):
    run = started(JOBS)
    Runner().run_all(test="failure")
    page = page_of(admin_client, run)
    assert "Build &lt;b&gt;" in page
    assert "Build <b>" not in page
    keys = re.findall('data-key="([^"]*)"', page)
    assert keys == ["build", "test"]
    assert "<td>build</td>" in page  # what the second one needs
    assert "failure" in page


def test_an_operator_approves_cancels_and_sees_what_is_possible(admin_client):
    run = started(JOBS, needs_approval=True, from_fork=True)
    page = page_of(admin_client, run)
    assert "/approve" in page
    assert "/cancel" in page
    assert "/rerun" not in page
    press(admin_client, run, "approve")
    assert reread(run).approved_by == "operator:admin"
    assert OperatorEvent.objects.get(action="workflow_run.approve").reason == "because"
    assert "/approve" not in page_of(admin_client, run)
    press(admin_client, run, "cancel")
    assert set(states(run).values()) == {"canceled:batch_canceled"}
    assert "/cancel" not in page_of(admin_client, run)
    assert "needs no" not in press(admin_client, run, "approve")


def test_an_operator_reruns_failed_jobs(admin_client, folders):
    origin = Origin(folders / "origins" / "web.git")
    commit = origin.commit({FILE: workflow_text(JOBS).encode()})
    repository = mirrored(origin, project=ProjectFactory())
    run = started(JOBS, repository, head_sha=commit)
    Runner().run_all(test="failure")
    assert "Started as run #2" in press(admin_client, run, "rerun-failed", "flaky")
    again = WorkflowRun.objects.latest("pk")
    assert (again.parent, again.reason, again.actor, list(again.carried)) == (run, "flaky", "admin", ["build"])
    page = page_of(admin_client, again)
    assert "taken over from the parent" in page
    assert "flaky" in page
    assert "has not ended" in press(admin_client, again, "rerun")


def test_an_operator_pins_an_ended_run_and_unpins_it(admin_client):
    run = started(JOBS)
    assert "/pin/" not in page_of(admin_client, run)
    assert "has not ended" in press(admin_client, run, "pin")
    Runner().run_all()
    assert "365 days after its end" in page_of(admin_client, run)
    press(admin_client, run, "pin", "release 1.0")
    assert reread(run).pinned
    page = page_of(admin_client, run)
    assert "/unpin/" in page
    assert "/pin/" not in page
    press(admin_client, run, "unpin")
    assert not reread(run).pinned


def test_without_the_permission_there_is_no_button(client, django_user_model):
    from django.contrib.auth.models import Permission  # noqa: PLC0415 beside its only use

    viewer = django_user_model.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_workflowrun"))
    client.force_login(viewer)
    run = started(JOBS, needs_approval=True)
    assert "/approve" not in page_of(client, run)
    assert client.post(f"{LIST}{run.pk}/approve/", {"reason": "x"}).status_code == 403
    assert reread(run).hold == "approval"


def test_a_rejected_file_is_displayed_with_its_diagnostics(admin_client):
    run = started(JOBS)
    found = parse_workflow(b"on: push\njobs:\n  a: {runs-on: x, '<b>': 1, steps: [run: y]}\n")
    rejected = RejectedWorkflow.objects.create(
        repository=run.repository, workflow_file=FILE, head_sha=COMMIT, event="push", trigger_id="push:x",
        diagnostics=[diagnostic.as_json() for diagnostic in found.diagnostics],
    )  # fmt: skip
    assert FILE in text(admin_client.get("/admin/runtime_jobs/rejectedworkflow/"))
    page = text(admin_client.get(f"/admin/runtime_jobs/rejectedworkflow/{rejected.pk}/change/"))
    assert "Line 3" in page
    assert "jobs.a[&quot;&lt;b&gt;&quot;]" in page
    assert "This key is unknown" in page
