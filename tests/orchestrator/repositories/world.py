"""Bare repositories as origins, and repositories of the installation that follow them."""

from pathlib import Path

from orchestrator.repositories.mirrors import update_mirror
from runtime_jobs.models import Repository
from tests.factories import ProjectFactory
from tests.workers.agent.repositories import Repository as BareRepository
from tests.workers.agent.repositories import git

WORKFLOW = b"on: push\njobs: {}\n"


class Origin(BareRepository):
    """A bare repository that tests push to by writing its refs."""

    def branch(self, name: str, commit: str) -> None:
        git("update-ref", f"refs/heads/{name}", commit, at=self.path)

    def tag(self, name: str, commit: str) -> None:
        git("tag", "-a", "-m", "release", name, commit, at=self.path)

    def git(self, *arguments: str) -> str:
        return git(*arguments, at=self.path)


def added(origin: Path | str, *, full_name: str = "acme/web", is_private: bool = False, project=None) -> Repository:
    """A repository with this origin, which no housekeeping knows."""
    owner, name = full_name.split("/")
    project = project or ProjectFactory()
    return Repository.objects.create(project=project, owner=owner, name=name, origin=str(origin), is_private=is_private)


def mirrored(origin: Origin, **values: object) -> Repository:
    """A repository with a mirror of its origin."""
    repository = added(origin.path, **values)
    update_mirror(repository)
    return repository
