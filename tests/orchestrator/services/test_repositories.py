"""A repository is added once, changed and removed; its origin is permitted by the settings, its credential sealed."""

import pytest

from orchestrator.core.cause import Cause
from orchestrator.core.sealing import SealedValueError, unseal
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.repositories.mirrors import CREDENTIAL
from orchestrator.repositories.operations import (
    add_repository,
    change_repository,
    delete_runs_of_repository,
    remove_repository,
)
from orchestrator.repositories.tasks import FOLLOW, MIRROR
from orchestrator.secrets.operations import set_secret, set_variable
from orchestrator.services import job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.models import (
    OperatorEvent,
    RejectedWorkflow,
    Repository,
    Secret,
    Variable,
    WorkflowRun,
    WorkflowSchedule,
    WorkflowTrigger,
)
from runtime_jobs.states import FailureReason
from tests.factories import OPERATOR, ProjectFactory
from tests.orchestrator.protocols.git_http.world import running_job

pytestmark = pytest.mark.django_db
URL = "https://github.com/acme/web"


def add(full_name: str = "acme/web", **changes) -> Repository:
    values = {"project": ProjectFactory(), "origin": URL, "cause": Cause(OPERATOR)}
    return add_repository(full_name=full_name, **values | changes)


def test_a_repository_is_mirrored_at_once_and_the_audit_log_has_no_credential():
    repository = add(is_private=True, credential="user:sesame", cause=Cause(OPERATOR, "new project"))
    assert (repository.owner, repository.name, repository.next_run_index) == ("acme", "web", 1)
    assert HousekeepingTask.objects.get().subject == str(repository.pk)
    event = OperatorEvent.objects.get()
    assert (event.action, event.target, event.reason) == ("repository.added", "repository:acme/web", "new project")
    assert event.after == {
        "project": str(repository.project), "origin": URL, "private": True, "credential": "set",
    }  # fmt: skip


def test_the_credential_opens_under_its_own_repository_only():
    sealed = bytes(add(credential="user:sesame").sealed_credential)
    assert b"sesame" not in sealed
    assert unseal(CREDENTIAL, sealed, context="acme/web") == b"user:sesame"
    with pytest.raises(SealedValueError):
        unseal(CREDENTIAL, sealed, context="acme/other")


@pytest.mark.parametrize("name", ["acme/web", "Acme/WEB"])
def test_a_name_is_taken_whatever_its_case(name):
    add()
    with pytest.raises(ResourceConflict, match=f"{name} already"):
        add(name, project=ProjectFactory(slug="other"))
    assert Repository.objects.count() == 1
    assert OperatorEvent.objects.count() == 1


@pytest.mark.parametrize("name", ["", "web", "acme/", "/web", "a/b/c", "acme/web.git", "acme/..", "a b/web", "-x/web"])
def test_a_name_that_git_could_misread_is_refused(name):
    with pytest.raises(Invalid) as raised:
        add(name)
    assert list(raised.value.errors) == ["name"]


@pytest.mark.parametrize("origin", ["http://github.com/a/b", "https://evil.example/a/b", "/etc", "ext::sh", ""])
def test_an_origin_that_the_settings_do_not_permit_is_refused(origin):
    with pytest.raises(Invalid) as raised:
        add(origin=origin)
    assert list(raised.value.errors) == ["origin"]


@pytest.mark.parametrize("credential", ["a\nb", "x" * 5000, "a\0"])
def test_a_credential_that_would_break_a_header_is_refused(credential):
    with pytest.raises(Invalid) as raised:
        add(credential=credential)
    assert list(raised.value.errors) == ["credential"]


# --- changes ----------------------------------------------------------------------------------------------------------


def change(repository: Repository, **changes) -> Repository:
    return change_repository(repository_id=repository.pk, cause=Cause(OPERATOR, "moved"), **changes)


def credential_of(repository: Repository) -> bytes | None:
    repository.refresh_from_db()
    sealed = repository.sealed_credential
    return None if sealed is None else unseal(CREDENTIAL, sealed, context=repository.full_name.lower())


def last_event() -> OperatorEvent:
    return OperatorEvent.objects.latest("id")


def test_a_new_origin_is_mirrored_at_once_and_never_gets_the_credential_of_the_former_one():
    repository = add(credential="user:sesame")
    HousekeepingTask.objects.all().delete()
    Repository.objects.update(mirrored_at=database_now())
    change(repository, origin="https://github.com/other/web")
    assert credential_of(repository) is None
    assert (repository.origin, repository.mirrored_at) == ("https://github.com/other/web", None)
    assert HousekeepingTask.objects.get().subject == str(repository.pk)
    event = last_event()
    assert (event.action, event.before["credential"], event.after["credential"]) == (
        "repository.changed",
        "set",
        "none",
    )
    assert (event.before["origin"], event.after["origin"], event.reason) == (URL, repository.origin, "moved")


def test_a_credential_is_replaced_and_deleted_and_the_audit_log_has_none():
    repository = add()
    change(repository, credential="user:first")
    assert credential_of(repository) == b"user:first"
    change(repository, credential="user:second")
    assert credential_of(repository) == b"user:second"
    assert last_event().after["credential"] == "changed"
    change(repository, credential="")
    assert credential_of(repository) is None
    texts = [str((event.before, event.after)) for event in OperatorEvent.objects.all()]
    assert not any("first" in text or "second" in text for text in texts)
    change(repository, origin="https://github.com/other/web", credential="user:third")
    assert credential_of(repository) == b"user:third"


def test_visibility_is_changed_and_the_rest_remains():
    repository = add(credential="user:sesame")
    HousekeepingTask.objects.all().delete()
    change(repository, is_private=True)
    assert credential_of(repository) == b"user:sesame"
    assert (repository.is_private, repository.origin) == (True, URL)
    assert not HousekeepingTask.objects.exists()
    assert last_event().after["private"] is True


def test_a_change_to_what_is_stored_is_no_event():
    repository = add(credential="user:sesame")
    change(repository, origin=URL, is_private=False)
    assert credential_of(repository) == b"user:sesame"
    assert OperatorEvent.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"origin": "https://evil.example/a/b"}, "origin"),
        ({"origin": ""}, "origin"),
        ({"credential": "a\nb"}, "credential"),
        ({"origin": "https://evil.example/a/b", "credential": "x"}, "origin"),
    ],
)
def test_a_wrong_change_is_refused_and_changes_nothing(changes, field):
    repository = add(credential="user:sesame")
    with pytest.raises(Invalid) as raised:
        change(repository, is_private=True, **changes)
    assert list(raised.value.errors) == [field]
    assert credential_of(repository) == b"user:sesame"
    assert (repository.origin, repository.is_private) == (URL, False)
    assert OperatorEvent.objects.count() == 1


def test_an_origin_that_the_settings_no_longer_permit_remains_until_it_is_changed(settings):
    repository = add()
    settings.REPOSITORY_HOSTS = ["git.example"]
    change(repository, origin=URL, is_private=True)
    assert repository.pk
    with pytest.raises(Invalid):
        change(repository, origin="https://github.com/acme/other")
    change(repository, origin="https://git.example/acme/web")


def test_a_repository_that_does_not_exist_is_neither_changed_nor_removed():
    for act in (change_repository, remove_repository):
        with pytest.raises(NotFound):
            act(repository_id=1, cause=Cause(OPERATOR))


# --- removal ----------------------------------------------------------------------------------------------------------


def remove(repository: Repository):
    return remove_repository(repository_id=repository.pk, cause=Cause(OPERATOR, "closed"))


def test_a_removed_repository_leaves_no_secret_no_schedule_no_event_and_its_mirror_is_deleted():
    repository = add(credential="user:sesame")
    organization, now = repository.project.organization, database_now()
    for scope in (repository, None):
        set_secret(organization=organization, repository=scope, name="KEY", value="sesame", cause=Cause(OPERATOR))
        set_variable(organization=organization, repository=scope, name="MODE", value="fast", cause=Cause(OPERATOR))
    common = {"repository": repository, "event": "push", "trigger_id": "push:1", "head_sha": "5" * 40}
    WorkflowTrigger.objects.create(**common, facts={})
    RejectedWorkflow.objects.create(**common, workflow_file="ci.yml", diagnostics=[])
    WorkflowSchedule.objects.create(repository=repository, workflow_file="ci.yml", cron="* * * * *", next_at=now)
    assert remove(repository) == {"secrets": 1, "variables": 1}
    assert not Repository.objects.exists()
    for model in (WorkflowTrigger, RejectedWorkflow, WorkflowSchedule):
        assert not model.objects.exists()
    assert [(row.name, row.repository) for row in (Secret.objects.get(), Variable.objects.get())] == [
        ("KEY", None), ("MODE", None),
    ]  # fmt: skip
    assert list(HousekeepingTask.objects.values_list("kind", flat=True)) == [FOLLOW]
    event = last_event()
    assert (event.action, event.target, event.reason) == ("repository.removed", "repository:acme/web", "closed")
    assert (event.before["secrets"], event.before["variables"], event.before["credential"]) == (1, 1, "set")
    assert not HousekeepingTask.objects.filter(kind=MIRROR).exists()


def test_the_name_of_a_removed_repository_is_free_and_its_number_is_not_used_again():
    first = add()
    number = first.pk
    remove(first)
    assert add(project=ProjectFactory(slug="other")).pk != number


def ended_run(repository: Repository, **columns) -> WorkflowRun:
    running = running_job(repository)
    job_end.fail(lease_ulid=running.lease.lease_ulid, worker=running.worker, reason=FailureReason.WORKER_ERROR)
    ended = {"conclusion": "failure", "completed_at": database_now()}
    WorkflowRun.objects.filter(pk=running.run.pk).update(**ended | columns)
    return running.run


def test_a_repository_with_runs_is_removed_only_after_they_are_deleted():
    repository = add()
    runs = [ended_run(repository) for _ in range(3)]
    with pytest.raises(ResourceConflict, match="3 workflow runs"):
        remove(repository)
    assert Repository.objects.exists()
    assert delete_runs_of_repository(repository_id=repository.pk) == len(runs)
    remove(repository)


def test_open_and_pinned_runs_are_not_deleted():
    repository = add()
    ended_run(repository)
    pinned = ended_run(repository, pinned=True)
    open_run = running_job(repository).run
    assert delete_runs_of_repository(repository_id=repository.pk) == 1
    assert set(WorkflowRun.objects.values_list("pk", flat=True)) == {pinned.pk, open_run.pk}
    with pytest.raises(ResourceConflict, match="2 workflow runs"):
        remove(repository)
