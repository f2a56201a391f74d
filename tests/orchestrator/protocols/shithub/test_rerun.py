"""`POST /api/v1/runs/{id}/rerun` (contract 2.8): the same file at the same commit, as a new run."""

import pytest

from runtime_jobs.models import WorkflowRun
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import OrganizationFactory, api_token
from tests.orchestrator.protocols.shithub.conftest import error_of
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import Runner, started, workflow_text

pytestmark = pytest.mark.django_db
FILE = ".shithub/workflows/ci.yml"
TEXT = workflow_text({"build": None}, on="{push: , workflow_dispatch: }", name="CI")


@pytest.fixture
def repository(settings, tmp_path):
    """A mirrored repository with one good and one wrong workflow file; `commit` is its only commit."""
    origins = tmp_path / "origins"
    origins.mkdir()
    settings.REPOSITORY_ROOT, settings.MIRROR_DIR = str(origins), str(tmp_path / "mirrors")
    origin = Origin(origins / "web.git")
    commit = origin.commit({FILE: TEXT.encode(), ".shithub/workflows/wrong.yml": b"on: push\njobs: wrong\n"})
    origin.branch("main", commit)
    found = mirrored(origin)
    found.commit = commit
    return found


@pytest.fixture
def ended(repository) -> WorkflowRun:
    """A run that has failed."""
    run = started({"build": None}, repository, workflow_file=FILE, head_sha=repository.commit)
    Runner().run_all(build="failure")
    return run


@pytest.fixture
def alice(repository) -> Caller:
    return Caller(api_token(repository.project.organization, ("jobs:write",)))


def path(run: object) -> str:
    return f"/api/v1/runs/{getattr(run, 'pk', run)}/rerun"


def test_a_rerun_has_the_same_commit_and_names_its_parent(alice, ended):
    response = alice.post(path(ended))
    assert response.status_code == 201, response.content
    new = WorkflowRun.objects.latest("pk")
    assert response.json() == {
        "run_id": new.pk,
        "run_index": ended.run_index + 1,
        "parent_run_id": ended.pk,
        "repo_id": ended.repository_id,
        "workflow_file": FILE,
        "head_sha": ended.head_sha,
    }
    assert (new.parent_id, new.event, new.event_payload, new.head_ref) == (
        *(ended.pk, ended.event, ended.event_payload, ended.head_ref),
    )
    assert new.trigger_id.startswith(f"rerun:{ended.pk}:")
    assert response["Cache-Control"] == "no-store"


def test_each_rerun_is_a_run_of_its_own(alice, ended):
    assert alice.post(path(ended)).json()["run_id"] != alice.post(path(ended)).json()["run_id"]


def test_an_open_run_is_409(alice, repository):
    run = started({"build": None}, repository, workflow_file=FILE, head_sha=repository.commit)
    with nothing_lost():
        error_of(alice.post(path(run)), 409)


@pytest.mark.parametrize(
    ("file", "status"), [(".shithub/workflows/none.yml", 409), (".shithub/workflows/wrong.yml", 422)]
)
def test_a_file_that_is_unreadable_or_wrong_at_the_commit(alice, repository, file, status):
    run = started({"a": {"if": "false"}}, repository, workflow_file=file, head_sha=repository.commit)
    with nothing_lost():
        error_of(alice.post(path(run)), status)


def test_a_commit_that_the_mirror_does_not_have_is_409(alice, repository):
    run = started({"a": {"if": "false"}}, repository, workflow_file=FILE, head_sha="c" * 40)
    with nothing_lost():
        error_of(alice.post(path(run)), 409)


def test_a_run_of_another_tenant_is_404_as_one_that_does_not_exist(ended):
    other = Caller(api_token(OrganizationFactory(slug="other")))
    with nothing_lost():
        texts = {error_of(other.post(path(run)), 404) for run in (ended, 10**9, 2**63, 0)}
    assert len(texts) == 1


def test_without_the_scope_it_is_403_and_without_a_token_401(ended, repository):
    reader = Caller(api_token(repository.project.organization, ("jobs:read",)))
    with nothing_lost():
        response = reader.post(path(ended))
        error_of(response, 403)
        assert response["X-Accepted-OAuth-Scopes"] == "repo:write"
        error_of(Caller().post(path(ended)), 401)


def test_runs_of_document_001_keep_their_own_errors(alice):
    response = alice.post("/api/v1/runs/rtb_01arz3ndektsv4rrffq69g5fav/rerun")
    assert isinstance(response.json()["error"], dict)
