"""`manage.py repository` adds, changes, lists and removes repositories, and refuses in one line."""

import io

import pytest
from django.core.management import CommandError, call_command

from orchestrator.housekeeping.queue import claim_task, record_failure
from orchestrator.repositories import tasks
from orchestrator.services import job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Repository, WorkflowRun
from runtime_jobs.states import FailureReason
from tests.factories import OrganizationFactory, ProjectFactory
from tests.orchestrator.protocols.git_http.world import running_job

pytestmark = pytest.mark.django_db
URL = "https://github.com/acme/web"


@pytest.fixture(autouse=True)
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="acme"), slug="web")


def run(*arguments: str) -> str:
    output = io.StringIO()
    call_command("repository", *arguments, stdout=output)
    return output.getvalue()


def add(*options: str, name: str = "acme/web", origin: str = URL) -> str:
    return run("add", "--project", "acme/web", "--name", name, "--from", origin, *options)


def test_a_repository_is_added_and_listed(tmp_path, project):
    file = tmp_path / "token"
    file.write_text("user:sesame\n")
    printed = add("--private", "--credential-file", str(file))
    repository = Repository.objects.get()
    assert printed == f"repository {repository.pk} acme/web: housekeeping copies it now\n"
    assert (repository.project, repository.is_private, repository.origin) == (project, True, URL)
    assert repository.sealed_credential is not None
    line = run("list")
    for part in (str(repository.pk), "acme/web", "private", URL, "no mirror"):
        assert part in line
    assert "sesame" not in printed + line
    assert run("list", "--project", "acme/web") == line
    ProjectFactory(organization=project.organization, slug="other")
    assert run("list", "--project", "acme/other") == ""


def test_a_failing_mirror_is_listed_with_its_error():
    add()
    assert tasks.MIRROR
    record_failure(claim_task("test"), "GitFailed: no route to host")
    assert "failing: GitFailed: no route to host" in run("list")


def test_every_refusal_is_one_line(tmp_path):
    with pytest.raises(CommandError, match="There is no project 'acme/none'"):
        run("add", "--project", "acme/none", "--name", "a/b", "--from", URL)
    with pytest.raises(CommandError, match="--from: The host must be one of"):
        add(origin="https://evil.example/a/b")
    with pytest.raises(CommandError, match="--name: owner/name is needed"):
        add(name="web")
    with pytest.raises(CommandError, match="--credential-file: cannot read"):
        add("--credential-file", str(tmp_path / "none"))
    add()
    with pytest.raises(CommandError, match="acme/web already"):
        add()


def test_a_repository_is_changed(tmp_path):
    file = tmp_path / "token"
    file.write_text("user:sesame\n")
    add("--credential-file", str(file))
    number = Repository.objects.get().pk
    assert run("change", "acme/web", "--private") == f"repository {number} acme/web: changed\n"
    assert Repository.objects.get().is_private
    moved = run("change", "Acme/Web", "--public", "--from", "https://github.com/acme/moved")
    assert moved == f"repository {number} acme/web: changed; the credential of the former origin was deleted\n"
    changed = Repository.objects.get()
    assert (changed.is_private, changed.origin) == (False, "https://github.com/acme/moved")
    assert changed.sealed_credential is None
    assert "sesame" not in run("change", "acme/web", "--credential-file", str(file))
    assert Repository.objects.get().sealed_credential is not None
    run("change", "acme/web", "--no-credential")
    assert Repository.objects.get().sealed_credential is None


def test_a_change_that_cannot_be_made_is_one_line():
    with pytest.raises(CommandError, match="There is no repository 'acme/web'"):
        run("change", "acme/web", "--private")
    add()
    with pytest.raises(CommandError, match="Name what to change"):
        run("change", "acme/web")
    with pytest.raises(CommandError, match="--from: The host must be one of"):
        run("change", "acme/web", "--from", "https://evil.example/a/b")
    assert Repository.objects.get().origin == URL


def test_a_repository_is_removed_and_with_runs_only_on_request():
    add()
    repository = Repository.objects.get()
    running = running_job(repository)
    with pytest.raises(CommandError, match="has 1 workflow runs"):
        run("remove", "acme/web")
    with pytest.raises(CommandError, match="has 1 workflow runs"):  # it has not ended
        run("remove", "acme/web", "--delete-runs")
    job_end.fail(lease_ulid=running.lease.lease_ulid, worker=running.worker, reason=FailureReason.WORKER_ERROR)
    WorkflowRun.objects.update(conclusion="failure", completed_at=database_now())
    assert run("remove", "acme/web", "--delete-runs").splitlines() == [
        "1 workflow runs deleted; housekeeping deletes their objects",
        f"repository {repository.pk} acme/web: removed with 0 secrets and 0 variables",
    ]
    assert not Repository.objects.exists()
    with pytest.raises(CommandError, match="There is no repository"):
        run("remove", "acme/web")
