"""Housekeeping of repositories: each has a task, and a mirror without a repository is deleted."""

from datetime import UTC, datetime

import pytest

from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.registry import SubjectGone
from orchestrator.processes import housekeeping_catalogue
from orchestrator.processes.housekeeping import HousekeepingProcess
from orchestrator.repositories.mirrors import mirrored_ids
from orchestrator.repositories.tasks import MIRROR, follow_repositories, mirror_repository, request_mirror
from tests.orchestrator.repositories.world import added, mirrored

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def declared():
    housekeeping_catalogue.load()


def test_every_repository_has_a_task_that_recurs(origin, settings):
    origin.commit({"a": b"1"})
    repository = added(origin.path)
    process = HousekeepingProcess(threads=1)
    follow_repositories("")
    task = HousekeepingTask.objects.get(kind=MIRROR)
    assert task.subject == str(repository.pk)
    while process.run_due():
        pass
    repository.refresh_from_db()
    assert repository.mirrored_at is not None
    task.refresh_from_db()
    assert (task.due_at - task.succeeded_at).total_seconds() == pytest.approx(settings.MIRROR_SECONDS)
    request_mirror(repository.pk)
    task.refresh_from_db()
    assert task.due_at <= task.succeeded_at or task.requested_count == 2


def test_a_mirror_without_a_repository_is_deleted(origin):
    origin.commit({"a": b"1"})
    kept, gone = mirrored(origin), mirrored(origin, full_name="acme/gone")
    key = gone.pk
    gone.delete()
    follow_repositories("")
    assert mirrored_ids() == [kept.pk]
    with pytest.raises(SubjectGone):
        mirror_repository(str(key))


def test_an_origin_that_fails_is_a_failure_of_its_task(folders):
    repository = added(folders / "origins" / "none.git")
    request_mirror(repository.pk)
    HousekeepingProcess(threads=1).run_due()
    task = HousekeepingTask.objects.get(kind=MIRROR)
    assert task.failures == 1
    assert task.last_error.startswith("InvalidOrigin: acme/web: The origin is not permitted.")
