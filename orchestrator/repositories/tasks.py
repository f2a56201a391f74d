"""Housekeeping of repositories: copies of their origins, and mirrors of which no row is left."""

import logging
from datetime import timedelta
from typing import Final

from django.conf import settings

from orchestrator.housekeeping.queue import create_missing, request_task
from orchestrator.housekeeping.registry import SubjectGone, task
from orchestrator.repositories.mirrors import delete_mirror, mirrored_ids, update_mirror
from runtime_jobs.models import Repository

log = logging.getLogger(__name__)

MIRROR: Final = "mirror_repository"
FOLLOW: Final = "follow_repositories"


def request_mirror(repository_id: int, *, delay: timedelta = timedelta(0)) -> None:
    """Let the mirror of a repository be updated as soon as possible, or after a delay.

    An earlier request counts.
    """
    request_task(MIRROR, str(repository_id), delay=delay)


@task(MIRROR, every=lambda: timedelta(seconds=settings.MIRROR_SECONDS))
def mirror_repository(subject: str) -> None:
    """Update the mirror of a repository."""
    repository = Repository.objects.filter(pk=int(subject)).first()
    if repository is None:
        raise SubjectGone(f"the repository {subject} does not exist")
    update_mirror(repository)


@task(FOLLOW, every=lambda: timedelta(minutes=10), is_standing=True)
def follow_repositories(_: str) -> None:
    """Create the tasks of repositories that have none, and delete mirrors without a repository."""
    # The folders are listed first: the row of a repository is committed before its folder exists.
    folders = mirrored_ids()
    existing = set(Repository.objects.values_list("pk", flat=True))
    create_missing(MIRROR, [str(pk) for pk in existing])
    for repository_id in folders:
        if repository_id not in existing:
            delete_mirror(repository_id)
            log.info("the mirror of the deleted repository %d was deleted", repository_id)
