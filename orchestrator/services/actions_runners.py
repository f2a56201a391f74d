"""Runners of workflow jobs (document 003): registration, tokens, and what their heartbeats report of themselves.

A registration token is returned once, by the operation that creates it. Only its digest is stored. Such a runner is a
worker without a token of the native API. Its state is changed by `set_worker_state`, as that of every worker.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from orchestrator.core.cause import Cause
from orchestrator.core.counters import REGISTRATIONS, count
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.credentials import require_other_pool
from orchestrator.services.worker_state import revoke_leases_of, set_worker_state
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.models.tenants import ISOLATION_CHOICES
from runtime_jobs.resource_names import slugify, with_random_suffix
from runtime_jobs.specs.actions import LABEL, MAX_LABEL_BYTES
from workers.models import ActionsRunner, Pool, RegistrationToken, Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import WORKER_PREFIX, digest_of, new_registration_token, new_token, registration_digest

DEFAULT_LABELS: Final = ("self-hosted", "linux", "ubuntu-latest", "x64")
MAX_CAPACITY: Final = 64
MAX_LABELS: Final = 256
MAX_SLUG_LENGTH: Final = 54  # with a random suffix 63, the length of the column
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@operation
def register_runner(
    uow: UnitOfWork,
    *,
    name: str,
    labels: Sequence[str] = DEFAULT_LABELS,
    capacity: int = 1,
    pool: str | None = None,
    isolation: str = "namespaces",
    expires_in: timedelta | None = None,
    cause: Cause,
) -> tuple[ActionsRunner, RegistrationToken, str]:
    """Register a runner of workflow jobs.

    Args:
        name: The unique name: letters, digits, underscores and hyphens, at most 100.
        labels: The labels that count until its first heartbeat names others.
        capacity: The maximum number of jobs at once, 1 to `MAX_CAPACITY`.
        pool: The slug of the pool in which it claims; by default `DEFAULT_POOL`, which is created if it is missing.
        isolation: The isolation that the operator vouches for.
        expires_in: The time after which the token is refused, or None.

    Returns:
        The runner, its token's row, and the token.

    Raises:
        Invalid: A value is malformed or out of bounds.
        NotFound: The pool does not exist.
        ResourceConflict: Another runner has this name.
    """
    created_at = cause.now or database_now()
    labels = normalize_labels(labels)
    _require_valid(name, capacity, isolation, expires_in)
    the_pool = _pool(pool)
    require_other_pool(the_pool)
    if ActionsRunner.objects.filter(name=name).exists():
        raise ResourceConflict(f"A runner with the name {name} exists already. Choose another name.")
    worker = Worker.objects.create(
        pool=the_pool,
        slug=_free_slug(name),
        name=name[:64],
        digest=digest_of(new_token(WORKER_PREFIX)),  # of a token that does not exist: the native API refuses it
        capacity=capacity,
        capabilities=[],
        created_at=created_at,
        modified_at=created_at,
    )
    runner = ActionsRunner.objects.create(worker=worker, name=name, labels=labels, isolation=isolation)
    row, token = _create_token(runner, expires_in, created_at)
    record_operator_event(
        "actions_runner.registered",
        target=worker.worker_id,
        cause=cause.at(created_at),
        after={"name": name, "labels": labels, "capacity": capacity, "pool": the_pool.slug, "isolation": isolation},
    )
    uow.after_commit(count, REGISTRATIONS)
    return runner, row, token


@operation
def rotate_registration_token(
    _: UnitOfWork,
    *,
    name: str,
    overlap: timedelta,
    expires_in: timedelta | None = None,
    cause: Cause,
) -> tuple[ActionsRunner, RegistrationToken, str]:
    """Give a runner a new token. Its other tokens are accepted for the time of the overlap.

    Args:
        name: The name of the runner.
        overlap: The time for which the other tokens stay valid; 0 ends them at once.
        expires_in: The time after which the new token is refused, or None.

    Returns:
        The runner, the row of its new token, and the token.

    Raises:
        Invalid: A time is negative, or the token would be expired.
        NotFound: The runner does not exist.
        ResourceConflict: The runner was revoked.
    """
    if overlap < timedelta(0):
        raise Invalid({"overlap": ["Must not be negative."]})
    _require_valid_expiry(expires_in)
    runner, rotated_at = lock_runner(name), cause.now or database_now()
    if runner.worker.state == WorkerState.REVOKED:
        raise ResourceConflict(f"The runner {name} was revoked, which is final. Register another runner.")
    end = rotated_at + overlap
    valid = runner.tokens.filter(revoked_at__isnull=True)
    if overlap:
        valid.exclude(expires_at__lt=end).update(expires_at=end)
    else:
        valid.update(revoked_at=rotated_at)
    row, token = _create_token(runner, expires_in, rotated_at)
    record_operator_event(
        "actions_runner.token_rotated",
        target=runner.worker.worker_id,
        cause=cause.at(rotated_at),
        after={"overlap_seconds": int(overlap.total_seconds())},
    )
    return runner, row, token


@operation
def revoke_registration_tokens(
    _: UnitOfWork,
    *,
    name: str,
    cause: Cause,
) -> int:
    """Revoke all tokens of a runner. A repetition changes nothing.

    Args:
        name: The name of the runner.

    Returns:
        The number of tokens that were valid.

    Raises:
        NotFound: The runner does not exist.
    """
    runner, revoked_at = lock_runner(name), cause.now or database_now()
    number = runner.tokens.filter(revoked_at__isnull=True).update(revoked_at=revoked_at)
    if number:
        record_operator_event(
            "actions_runner.tokens_revoked",
            target=runner.worker.worker_id,
            cause=cause.at(revoked_at),
            after={"tokens": number},
        )
    return number


def revoke_runner(*, name: str, cause: Cause) -> int:
    """Revoke a runner for good: its tokens first, then the worker and its leases, each in a transaction of its own.

    A repetition continues what was interrupted.

    Args:
        name: The name of the runner.

    Returns:
        The number of leases that were ended.

    Raises:
        NotFound: The runner does not exist.
    """
    worker = find_runner(name).worker
    revoke_registration_tokens(name=name, cause=cause)
    if worker.state != WorkerState.REVOKED:
        set_worker_state(worker_id=worker.worker_id, state=WorkerState.REVOKED, cause=cause)
    return revoke_leases_of(worker_id=worker.worker_id, actor=cause.actor, reason=f"runner revoked: {cause.reason}")


def find_runner(name: str) -> ActionsRunner:
    """Return a runner with its worker.

    Raises:
        NotFound: The runner does not exist.
    """
    runner = ActionsRunner.objects.select_related("worker__pool").filter(name=name).first()
    if runner is None:
        raise NotFound(f"The runner {name[:100]} does not exist.")
    return runner


def lock_runner(name: str) -> ActionsRunner:
    """Lock the worker of a runner, and return the runner.

    Raises:
        NotFound: The runner does not exist.
    """
    key = ActionsRunner.objects.filter(name=name).values_list("pk", flat=True).first()
    worker = Worker.objects.locked().filter(pk=key).first() if key else None
    if worker is None:
        raise NotFound(f"The runner {name[:100]} does not exist.")
    runner = ActionsRunner.objects.get(pk=key)
    runner.worker = worker
    return runner


def normalize_labels(labels: Sequence[str]) -> list[str]:
    """Return labels without blanks around them and without duplicates, in order (contract 2.1).

    Raises:
        Invalid: A label is empty, too long or has other characters, or there are too many.
    """
    found = list(dict.fromkeys(label.strip() for label in labels))
    if len(found) > MAX_LABELS:
        raise Invalid({"labels": [f"At most {MAX_LABELS} labels are allowed, and {len(found)} were sent."]})
    for label in found:
        if not LABEL.fullmatch(label):
            text = f"A label has 1 to {MAX_LABEL_BYTES} letters, digits, dots, hyphens or underscores."
            raise Invalid({"labels": [text]})
    return found


def _require_valid(name: str, capacity: int, isolation: str, expires_in: timedelta | None) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid({"name": ["Must have 1 to 100 letters, digits, underscores or hyphens."]})
    if not 1 <= capacity <= MAX_CAPACITY:
        raise Invalid({"capacity": [f"Must be from 1 to {MAX_CAPACITY}."]})
    if isolation not in dict(ISOLATION_CHOICES):
        raise Invalid({"isolation": [f"Must be one of: {', '.join(dict(ISOLATION_CHOICES))}."]})
    _require_valid_expiry(expires_in)


def _require_valid_expiry(expires_in: timedelta | None) -> None:
    if expires_in is not None and expires_in <= timedelta(0):
        raise Invalid({"expires_in": ["Must be positive."]})


def _pool(slug: str | None) -> Pool:
    if slug is None:
        return Pool.objects.get_or_create(slug=settings.DEFAULT_POOL)[0]
    pool = Pool.objects.filter(slug=slug).first()
    if pool is None:
        raise NotFound(f"The pool {slug} does not exist.")
    return pool


def _free_slug(name: str) -> str:
    slug = slugify(name)[:MAX_SLUG_LENGTH].rstrip("-")
    return with_random_suffix(slug)[:63] if Worker.objects.filter(slug=slug).exists() else slug


def _create_token(runner: ActionsRunner, expires_in: timedelta | None, now: datetime) -> tuple[RegistrationToken, str]:
    token = new_registration_token()
    expires_at = now + expires_in if expires_in else None
    row = RegistrationToken.objects.create(
        runner=runner, digest=registration_digest(token), created_at=now, expires_at=expires_at
    )
    return row, token
