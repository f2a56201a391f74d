"""Housekeeping and repositories in the admin: errors are displayed, and a button starts a task at once."""

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.core.cause import Cause
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.repositories.operations import add_repository
from orchestrator.repositories.tasks import MIRROR
from runtime_jobs.models import OperatorEvent, Repository
from tests.factories import OPERATOR, ProjectFactory
from tests.orchestrator.admin.pages import address
from tests.orchestrator.protocols.git_http.world import running_job

WHY = {"reason": "the origin is reachable again"}
FUTURE = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def task(db):
    return HousekeepingTask.objects.create(
        kind=MIRROR, subject="7", due_at=FUTURE, failures=3, last_error="GitFailed: no route to host"
    )


@pytest.fixture
def repository(db):
    return add_repository(
        project=ProjectFactory(),
        full_name="acme/web",
        origin="https://github.com/acme/web",
        credential="user:sesame",
        cause=Cause(OPERATOR),
    )


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({}, "failing"),
        ({"due_at": None}, "failed"),
        ({"claimed_until": FUTURE}, "running"),
        ({"failures": 0}, "waiting"),
        ({"failures": 0, "due_at": FUTURE - timedelta(days=1)}, "due"),
    ],
)
def test_the_list_displays_the_state_and_the_last_error(olga, task, columns, state):
    HousekeepingTask.objects.update(**columns)
    page = olga.get(address(HousekeepingTask, "changelist"))
    assert page.context["cl"].result_list[0].subject == "7"
    assert f">{state}<" in "".join(page.content.decode().split())
    assert "no route to host" in page.content.decode()


def test_failing_tasks_are_filtered_and_come_first(olga, task):
    HousekeepingTask.objects.update(failed_at=datetime.now(UTC))
    HousekeepingTask.objects.create(kind="other", subject="", due_at=FUTURE)
    page = address(HousekeepingTask, "changelist")
    assert [row.kind for row in olga.get(page).context["cl"].result_list] == [MIRROR, "other"]
    assert [row.kind for row in olga.get(f"{page}?state=failing").context["cl"].result_list] == [MIRROR]
    assert [row.kind for row in olga.get(f"{page}?state=ok").context["cl"].result_list] == ["other"]


def test_a_button_lets_a_task_run_at_once_and_is_recorded(olga, viewer, task):
    page = address(HousekeepingTask, "start", task.pk)
    assert olga.post(page, {"reason": ""}).status_code == 400
    assert viewer.post(page, WHY).status_code == 403
    assert olga.post(address(HousekeepingTask, "start", 10**9), WHY).status_code == 404
    assert HousekeepingTask.objects.get().due_at == FUTURE
    assert olga.post(page, WHY).status_code == 302
    assert HousekeepingTask.objects.get().due_at <= datetime.now(UTC)
    event = OperatorEvent.objects.get()
    assert (event.action, event.target, event.reason) == (
        "housekeeping.started", f"housekeeping:{MIRROR} 7", WHY["reason"],
    )  # fmt: skip


def test_a_repository_displays_its_origin_and_never_the_credential(olga, repository):
    for page in (address(Repository, "changelist"), address(Repository, "change", repository.pk)):
        text = olga.get(page).content.decode()
        assert "https://github.com/acme/web" in text
        assert "sesame" not in text
    assert "sesame" not in str(OperatorEvent.objects.get().after)


def test_the_mirror_of_a_repository_is_updated_by_a_button(olga, viewer, repository):
    HousekeepingTask.objects.update(due_at=FUTURE)
    page = address(Repository, "update_mirror", repository.pk)
    assert viewer.post(page, WHY).status_code == 403
    assert olga.post(page, WHY).status_code == 302
    assert HousekeepingTask.objects.get(kind=MIRROR, subject=str(repository.pk)).due_at <= datetime.now(UTC)


ORIGIN = "https://github.com/acme/web"


def test_a_repository_is_changed_by_a_form_that_never_has_the_credential(olga, viewer, repository):
    page = address(Repository, "edit", repository.pk)
    changes = {"origin": ORIGIN, "is_private": "on", "credential": "", **WHY}
    assert viewer.post(page, changes).status_code == 403
    text = olga.get(page).content.decode()
    assert ORIGIN in text
    assert "sesame" not in text
    assert 'type="password"' in text
    assert olga.post(page, changes).status_code == 302
    repository.refresh_from_db()
    assert (repository.is_private, repository.sealed_credential is None) == (True, False)
    rejected = olga.post(page, changes | {"credential": "new:sesame", "origin": "https://evil.example/a/b"})
    assert rejected.status_code == 400
    text = rejected.content.decode()
    assert "The host must be one of" in text
    assert "new:sesame" not in text
    assert olga.post(page, changes | {"credential": "new:sesame", "clear_credential": "on"}).status_code == 400
    assert olga.post(page, changes | {"clear_credential": "on"}).status_code == 302
    repository.refresh_from_db()
    assert repository.sealed_credential is None
    assert "sesame" not in str([(event.before, event.after) for event in OperatorEvent.objects.all()])
    assert olga.post(address(Repository, "edit", 10**9), changes).status_code == 404


def test_a_repository_is_removed_by_a_button_unless_it_has_runs(olga, viewer, repository):
    page = address(Repository, "remove", repository.pk)
    assert viewer.post(page, WHY).status_code == 403
    run = running_job(repository).run
    refused = olga.post(page, WHY, follow=True)
    assert "1 workflow runs" in refused.content.decode()
    assert Repository.objects.exists()
    run.delete()
    assert olga.post(page, {"reason": ""}).status_code == 400
    assert olga.post(page, WHY).status_code == 302
    assert not Repository.objects.exists()
    assert OperatorEvent.objects.latest("id").action == "repository.removed"
