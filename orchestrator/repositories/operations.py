"""Adds git repositories to projects, changes their origins, and removes them.

The number of a repository never changes and is not used again: tokens, runs and the folder of its mirror have it. A
repository has no other name later: its sealed values are bound to it, and clients have its address.
"""

from collections import Counter
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.queue import request_task
from orchestrator.repositories.mirrors import seal_credential, validate_origin
from orchestrator.repositories.tasks import FOLLOW, MIRROR, request_mirror
from orchestrator.services.pruning import delete_finished_jobs
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.models import Job, Project, Repository, Secret, Variable, WorkflowRun
from runtime_jobs.validators import validate_name

MAX_CREDENTIAL_LENGTH = 4_096
RUNS_PER_STEP = 100  # that are deleted in one transaction


@operation
def add_repository(
    _: UnitOfWork,
    *,
    project: Project,
    full_name: str,
    origin: str,
    cause: Cause,
    is_private: bool = False,
    credential: str = "",
) -> Repository:
    """Add a repository to a project. Housekeeping copies it from its origin at once.

    Args:
        project: The project whose workflows may use it.
        full_name: `owner/name`, which no repository of the installation has yet.
        origin: The https URL, or the absolute path of a bare repository below REPOSITORY_ROOT.
        is_private: Whether git asks clients for credentials.
        credential: `user:password` or a token for the origin; empty: the origin is public.

    Raises:
        Invalid: The name, the origin or the credential is malformed.
        ResourceConflict: The installation has a repository with this name.
    """
    owner, _slash, name = full_name.partition("/")
    if errors := _name_errors(owner, name) | _origin_errors(origin, credential):
        raise Invalid(errors)
    sealed = seal_credential(full_name, credential) if credential else None
    repository = Repository(
        project=project, owner=owner, name=name, origin=origin, is_private=is_private, sealed_credential=sealed
    )
    try:
        with transaction.atomic():
            repository.save(force_insert=True)
    except IntegrityError as error:
        if "one_repository_per_name" not in str(error):
            raise
        raise ResourceConflict(f"There is a repository {full_name} already. Names differ in more than case.") from None
    request_mirror(repository.pk)
    after = _described(repository)
    _record("added", repository, cause, after=after)
    return repository


@operation
def change_repository(
    _: UnitOfWork,
    *,
    repository_id: int,
    cause: Cause,
    origin: str | None = None,
    is_private: bool | None = None,
    credential: str | None = None,
) -> Repository:
    """Change the origin, the credential or the visibility of a repository. What is None remains.

    A new origin does not get the credential of the former one, because it may be another host: without a new credential
    there is none afterwards. Housekeeping makes the mirror equal to a new origin at once, and keeps the commits that
    it has, because a job may check them out.

    Args:
        repository_id: The number of the repository.
        origin: The new origin, as of `add_repository`.
        is_private: Whether git asks clients for credentials.
        credential: The new `user:password` or token; empty: there is none.

    Raises:
        NotFound: There is no such repository.
        Invalid: The origin or the credential is malformed.
    """
    repository = _lock(repository_id)
    before = _described(repository)
    has_moved = origin is not None and origin != repository.origin
    if credential is None and has_moved:
        credential = ""
    if errors := _origin_errors(origin if has_moved else None, credential or "", path=origin or repository.origin):
        raise Invalid(errors)
    if has_moved and origin is not None:
        repository.origin, repository.mirrored_at = origin, None
    if credential is not None:
        sealed = seal_credential(repository.full_name, credential) if credential else None
        repository.sealed_credential = sealed
    if is_private is not None:
        repository.is_private = is_private
    repository.save(update_fields=["origin", "mirrored_at", "sealed_credential", "is_private"])
    if has_moved or credential is not None:
        request_mirror(repository.pk)
    after = _described(repository) | ({"credential": "changed"} if credential else {})
    if after != before:
        _record("changed", repository, cause, before=before, after=after)
    return repository


@operation
def remove_repository(
    _: UnitOfWork,
    *,
    repository_id: int,
    cause: Cause,
) -> Counter[str]:
    """Remove a repository that has no workflow runs, with its secrets, variables, schedules and waiting events.

    Housekeeping deletes the mirror. Git clients get 404 or 401 from now on.

    Args:
        repository_id: The number of the repository.

    Returns:
        The numbers of deleted secrets and variables.

    Raises:
        NotFound: There is no such repository.
        ResourceConflict: The repository has workflow runs.
    """
    repository = _lock(repository_id)
    if runs := WorkflowRun.objects.filter(repository=repository).count():
        raise ResourceConflict(
            f"The repository {repository.full_name} has {runs:,} workflow runs. Retention deletes runs, or "
            "`manage.py repository remove --delete-runs` deletes those that have ended and are not pinned."
        )
    removed = Counter(
        secrets=Secret.objects.filter(repository=repository).count(),
        variables=Variable.objects.filter(repository=repository).count(),
    )
    before = _described(repository) | dict(removed)
    repository.delete()
    HousekeepingTask.objects.filter(kind=MIRROR, subject=str(repository_id)).delete()
    request_task(FOLLOW, now=cause.now)
    _record("removed", repository, cause, before=before)
    return removed


def delete_runs_of_repository(*, repository_id: int, now: datetime | None = None) -> int:
    """Delete the ended workflow runs of a repository that are not pinned, with all that belongs to them.

    A number of short transactions. Housekeeping deletes the objects of the runs.

    Args:
        repository_id: The number of the repository.
        now: The present; by default the time of the database.

    Returns:
        The number of deleted runs.
    """
    ended_before = now or database_now()
    deleted, last = 0, 0
    while True:
        runs = WorkflowRun.objects.filter(repository_id=repository_id, pinned=False, conclusion__isnull=False)
        chosen = dict(runs.filter(pk__gt=last).order_by("pk").values_list("pk", "batch_id")[:RUNS_PER_STEP])
        if not chosen:
            return deleted
        jobs = list(Job.objects.filter(batch_id__in=chosen.values()).values_list("pk", flat=True))
        rows = delete_finished_jobs(job_ids=jobs, finished_before=None, runs_finished_before=ended_before)
        deleted, last = deleted + rows["workflow_runs"], max(chosen)


def _lock(repository_id: int) -> Repository:
    rows = Repository.objects.select_for_update(of=("self",)).select_related("project__organization")
    repository = rows.filter(pk=repository_id).first()
    if repository is None:
        raise NotFound("The repository does not exist.")
    return repository


def _described(repository: Repository) -> dict[str, Any]:
    return {
        "project": str(repository.project),
        "origin": repository.origin,
        "private": repository.is_private,
        "credential": "none" if repository.sealed_credential is None else "set",
    }


def _record(
    change: str,
    repository: Repository,
    cause: Cause,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    target = f"repository:{repository.full_name}"[:200]
    org_slug = repository.project.organization.slug
    record_operator_event(
        f"repository.{change}", target=target, cause=cause, before=before, after=after, org_slug=org_slug
    )


def _name_errors(owner: str, name: str) -> dict[str, list[str]]:
    wrong_name = validate_name(owner) or validate_name(name)
    if wrong_name is None and name.lower().endswith(".git"):
        wrong_name = "It must not end with .git, which git appends to the address."
    return {} if wrong_name is None else {"name": [f"owner/name is needed. {wrong_name}"]}


def _origin_errors(origin: str | None, credential: str, *, path: str = "") -> dict[str, list[str]]:
    """Return what is wrong with an origin, unless it remains, and with the credential for it or for `path`."""
    errors: dict[str, list[str]] = {}
    if origin is not None and (wrong_origin := validate_origin(origin)) is not None:
        errors["origin"] = [wrong_origin]
    if len(credential) > MAX_CREDENTIAL_LENGTH or wrong_label(credential) is not None:
        errors["credential"] = [f"user:password or a token of at most {MAX_CREDENTIAL_LENGTH:,} characters is needed."]
    elif credential and (path if origin is None else origin).startswith("/"):
        errors["credential"] = ["A local origin has no credential."]
    return errors
