"""Secrets and variables: set, deleted, and handed out to jobs at their claim.

No function returns the value of a secret but the claim, and no event contains a value.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar

from django.db.models import Q

from leases.advisory_locks import VALUES_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_event_of
from orchestrator.core.sealing import seal, unseal
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.models import Job, MaskSnapshot, Organization, Repository, Secret, Variable
from runtime_jobs.models.secrets import MAX_NAME_LENGTH, MAX_PER_SCOPE, MAX_VALUE_BYTES, NAME, ScopedValue
from runtime_jobs.prepared_queries import PreparedQuery, fetch_all

# Purposes of sealed values; see `orchestrator.core.sealing`.
SECRET: Final = "secret"  # noqa: S105 the name of a purpose
MASKS: Final = "masks"
# A run of this event may execute what a stranger has written.
UNTRUSTED_EVENT: Final = "pull_request"
# A runner replaces expressions in variables, so a value must not contain one.
EXPRESSION: Final = "${{"

V = TypeVar("V", Secret, Variable)

_OF_JOB: Final[dict[type, PreparedQuery[Any]]] = {
    model: PreparedQuery(
        model,
        """WHERE t.repository_id IS NULL
              AND t.organization_id = (SELECT id FROM runtime_jobs_organization WHERE slug = %s)
              OR t.repository_id = %s""",
    )
    for model in (Secret, Variable)
}
_SNAPSHOT: Final = """
INSERT INTO runtime_mask_snapshots AS m (job_ulid, fence, sealed, created_at) VALUES (%s, %s, %b, %s)
    ON CONFLICT (job_ulid)
    DO UPDATE SET fence = EXCLUDED.fence, sealed = EXCLUDED.sealed, created_at = EXCLUDED.created_at
RETURNING m.fence
"""


class RunOfJob(Protocol):
    """The part of a workflow run on which the secrets of its jobs depend."""

    event: str
    repository_id: int


@dataclass(frozen=True)
class SecretSnapshot:
    """The values that a claim hands out.

    Attributes:
        secrets: Values by name. The repository wins over the organization.
        variables: Likewise.
        masks: The texts that the log of the job must not contain, sorted.
    """

    secrets: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    masks: list[str] = field(default_factory=list)


@operation
def set_secret(
    _: UnitOfWork,
    *,
    organization: Organization,
    repository: Repository | None,
    name: str,
    value: str,
    cause: Cause,
) -> tuple[Secret, bool]:
    """Set a secret of an organization or repository. Claims that commit later hand out the new value.

    Args:
        organization: The organization.
        repository: One of its repositories, or None for all of them.
        name: The name. Another case of its letters names the same secret.
        value: The value, 1 byte to 48 KiB in UTF-8.

    Returns:
        The row, and whether it is new.

    Raises:
        Invalid: The name or value is out of bounds.
        NotFound: The repository belongs to another organization.
        ResourceConflict: The organization or repository has 100 secrets already.
    """
    return _set(_Change(Secret, organization, repository, name, cause), value)


@operation
def delete_secret(
    _: UnitOfWork,
    *,
    organization: Organization,
    repository: Repository | None,
    name: str,
    cause: Cause,
) -> None:
    """Delete a secret. Jobs that have it keep it, and it stays masked in their logs.

    Args:
        organization: The organization.
        repository: One of its repositories, or None.
        name: The name, in any case.

    Raises:
        NotFound: There is no such secret.
    """
    _delete(_Change(Secret, organization, repository, name, cause))


@operation
def set_variable(
    _: UnitOfWork,
    *,
    organization: Organization,
    repository: Repository | None,
    name: str,
    value: str,
    cause: Cause,
) -> tuple[Variable, bool]:
    """Set a variable of an organization or repository; see `set_secret`. The value may not contain `${{`."""
    return _set(_Change(Variable, organization, repository, name, cause), value)


@operation
def delete_variable(
    _: UnitOfWork,
    *,
    organization: Organization,
    repository: Repository | None,
    name: str,
    cause: Cause,
) -> None:
    """Delete a variable; see `delete_secret`."""
    _delete(_Change(Variable, organization, repository, name, cause))


def snapshot_secrets(
    uow: UnitOfWork, job: Job, run: RunOfJob, *, more_masks: Collection[str] = (), now: datetime | None = None
) -> SecretSnapshot:
    """Read the secrets and variables of a claimed job, and store what its log must not contain. Part of the claim.

    A run of a pull request gets neither secrets nor variables. The stored masks belong to the fence of the job, which
    the claim has raised: later changes of secrets do not affect them.

    Args:
        uow: The unit of work of the claim.
        job: The job, with its new fence.
        run: The workflow run of the job.
        more_masks: Further texts that the job receives and must not print, such as a token.

    Raises:
        SealedValueError: A secret cannot be opened. The claim must not be committed.
    """
    uow.require_transaction()
    secrets, variables = {}, {}
    if run.event != UNTRUSTED_EVENT:
        secrets = _visible(
            (row, unseal(SECRET, row.sealed, context=row.sealing_context).decode()) for row in _rows(Secret, job, run)
        )
        variables = _visible((row, row.value) for row in _rows(Variable, job, run))
    values = SecretSnapshot(secrets, variables, sorted({*secrets.values(), *more_masks}))
    snapshot = MaskSnapshot(job_id=job.job_ulid, fence=job.fence, created_at=now or database_now())
    snapshot.sealed = seal(MASKS, json.dumps(vars(values)).encode(), context=snapshot.sealing_context)
    fetch_all(_SNAPSHOT, [snapshot.job_id, snapshot.fence, snapshot.sealed, snapshot.created_at])
    return values


def stored_secrets(job: Job) -> SecretSnapshot | None:
    """Return what the claim of a job has handed out, or None if nothing was stored under its fence.

    Raises:
        SealedValueError: The snapshot cannot be opened.
    """
    snapshot = MaskSnapshot.objects.filter(job_id=job.job_ulid, fence=job.fence).first()
    return None if snapshot is None else _opened(snapshot)


def masks_in(snapshot: MaskSnapshot) -> tuple[bytes, ...]:
    """Return the texts of a snapshot as bytes, sorted.

    Raises:
        SealedValueError: The snapshot cannot be opened.
    """
    return tuple(text.encode() for text in _opened(snapshot).masks)


def _opened(snapshot: MaskSnapshot) -> SecretSnapshot:
    return SecretSnapshot(**json.loads(unseal(MASKS, snapshot.sealed, context=snapshot.sealing_context)))


def validate_value(value: str) -> str | None:
    """Return the error of a value of a secret, or None."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "The value must be text in UTF-8."
    if not 1 <= size <= MAX_VALUE_BYTES:
        return f"The value has {size} bytes; it must have 1 to {MAX_VALUE_BYTES}."
    if "\0" in value:
        return "The value must not contain NUL, which no environment variable can contain."
    return None


def validate_variable(value: str) -> str | None:
    """Return the error of a value of a variable, or None."""
    if EXPRESSION in value:
        return "The value must not contain ${{: runners would replace it as an expression."
    return validate_value(value)


_VALIDATORS: Final = {Secret: validate_value, Variable: validate_variable}


@dataclass(frozen=True)
class _Change(Generic[V]):
    """One change of a secret or variable: its scope and name, and the facts of its operator event."""

    model: type[V]
    organization: Organization
    repository: Repository | None
    name: str
    cause: Cause


def _set(change: _Change[V], value: str) -> tuple[V, bool]:
    _require_valid(change.model, change.name, value)
    _lock_scope(change.organization, change.repository)
    set_at = change.cause.now or database_now()
    row = _find(change)
    is_new = row is None
    if row is None:
        _require_room(change.model, change.organization, change.repository)
        row = change.model(organization=change.organization, repository=change.repository, created_at=set_at)
    row.name, row.updated_by, row.updated_at = change.name, str(change.cause.actor)[:200], set_at
    if isinstance(row, Secret):
        row.sealed = seal(SECRET, value.encode(), context=row.sealing_context)
    else:
        row.value = value
    row.save()
    _record(row, "created" if is_new else "changed", change.cause.at(set_at))
    return row, is_new


def _delete(change: _Change[V]) -> None:
    _lock_scope(change.organization, change.repository)
    row = _find(change)
    if row is None:
        noun = change.model._meta.verbose_name  # noqa: SLF001 Django's name
        raise NotFound(f"There is no {noun} with this name in this organization or repository.")
    change.model.objects.filter(pk=row.pk).delete()
    _record(row, "deleted", change.cause)


def _require_valid(model: type[V], name: str, value: str) -> None:
    if not NAME.fullmatch(name):
        text = f"Letters, digits and underscores, at most {MAX_NAME_LENGTH}; the first one is no digit."
        raise Invalid({"name": [text]})
    if error := _VALIDATORS[model](value):
        raise Invalid({"value": [error]})


def _lock_scope(organization: Organization, repository: Repository | None) -> None:
    """Wait for other changes of the organization's values: two new ones could pass the limit of a scope together."""
    if repository is not None and repository.project.organization_id != organization.pk:
        raise NotFound("The organization has no such repository.")
    advisory_xact_lock(VALUES_OF_ORGANIZATION, organization.pk)


def _of_scope(organization: Organization, repository: Repository | None) -> Q:
    return Q(organization=organization, repository=None) if repository is None else Q(repository=repository)


def _find(change: _Change[V]) -> V | None:
    rows = change.model.objects.select_related("organization", "repository")
    return rows.filter(_of_scope(change.organization, change.repository), name__iexact=change.name).first()


def _require_room(model: type[V], organization: Organization, repository: Repository | None) -> None:
    if model.objects.filter(_of_scope(organization, repository)).count() >= MAX_PER_SCOPE:
        scope = "organization" if repository is None else "repository"
        nouns = model._meta.verbose_name_plural  # noqa: SLF001 Django's name
        raise ResourceConflict(f"The {scope} has {MAX_PER_SCOPE} {nouns}, which is its limit. Delete one.")


def _record(row: Secret | Variable, action: str, cause: Cause) -> None:
    named: dict[str, Any] = {"name": row.name, "repository": row.repository and row.repository.full_name}
    if action == "deleted":
        record_event_of(row, action, cause, before=named)
    else:
        record_event_of(row, action, cause, after=named)


def _rows(model: type[V], job: Job, run: RunOfJob) -> list[V]:
    """Return the rows of a job's organization, then those of its repository."""
    rows: list[V] = _OF_JOB[model].all(job.org_slug, run.repository_id)
    return sorted(rows, key=lambda row: (row.repository_id is not None, row.name))


def _visible(values: Any) -> dict[str, str]:
    """Return values by name. A later one replaces an earlier one whose name differs at most in the case of letters."""
    by_key: dict[str, tuple[str, str]] = {}
    row: ScopedValue
    for row, value in values:
        by_key[row.name.upper()] = (row.name, value)
    return dict(by_key.values())
