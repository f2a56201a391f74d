"""Idempotency keys: the first request counts, a repetition returns its result, another request is a conflict."""

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.unit_of_work import UnitOfWork
from runtime_jobs.errors import IdempotencyConflict, LifecycleError
from runtime_jobs.models import IdempotencyKey
from runtime_jobs.prepared_queries import fetch_all

_BOUND = """SELECT k.principal, k.operation, k.key FROM idempotency_keys k
    JOIN unnest(%s::varchar[], %s::varchar[], %s::varchar[]) AS named (principal, operation, key)
   USING (principal, operation, key)"""


@dataclass(frozen=True)
class IdempotentRequest:
    """A request with an idempotency key.

    Attributes:
        principal: The caller that sent the key.
        operation: The operation and its target.
        key: The key.
        fingerprint: The digest of the request's body; see `fingerprint_of`.
    """

    principal: str
    operation: str
    key: str
    fingerprint: str

    def bind(self, result_id: str, *, now: datetime) -> str:
        """Bind the key to this result, or return the result to which it is bound already.

        A second request at the same time waits here until the transaction of the first one ends.

        Args:
            result_id: The id of the result, such as a job's id.
            now: Timestamp of the key.

        Raises:
            IdempotencyConflict: The key was used with another request.
        """
        IdempotencyKey.objects.bulk_create([self._row(result_id, now)], ignore_conflicts=True)
        return self._result_of(IdempotencyKey.objects.get(**self._name))

    def bind_with(self, uow: UnitOfWork, result_id: str, *, now: datetime) -> str:
        """Bind the key as `bind` does, in an optimistic attempt with the statement that writes the result.

        That statement writes nothing if the key is bound already. The operation is then repeated in a transaction.

        Args:
            result_id: As in `bind`.
            now: As in `bind`.

        Returns:
            As `bind`; in an optimistic attempt always this result.
        """
        if not uow.is_optimistic:
            return self.bind(result_id, now=now)
        uow.idempotency_keys.append(self._row(result_id, now))
        return result_id

    def bind_chosen(self, result_id: str, *, now: datetime) -> str | None:
        """Bind the key to a result whose id the caller has chosen. A repetition has chosen the same id.

        A second request at the same time waits here until the transaction of the first one ends.

        Args:
            result_id: The id of the result.
            now: Timestamp of the key.

        Returns:
            The result to which the key was bound before, or None: it was not bound.

        Raises:
            IdempotencyConflict: The key was used with another request.
        """
        defaults = {"fingerprint": self.fingerprint, "result_id": result_id, "created_at": now}
        row, is_new = IdempotencyKey.objects.get_or_create(**self._name, defaults=defaults)
        return None if is_new else self._result_of(row)

    def lookup(self) -> str | None:
        """Return the result to which the key is bound, or None.

        Raises:
            IdempotencyConflict: The key was used with another request.
        """
        row = IdempotencyKey.objects.filter(**self._name).first()
        return None if row is None else self._result_of(row)

    def release(self) -> None:
        """Unbind the key, because its result does not count any more."""
        IdempotencyKey.objects.filter(**self._name).delete()

    @property
    def _name(self) -> dict[str, str]:
        return {"principal": self.principal, "operation": self.operation, "key": self.key}

    def _row(self, result_id: str, now: datetime) -> IdempotencyKey:
        return IdempotencyKey(**self._name, fingerprint=self.fingerprint, result_id=result_id, created_at=now)

    def _result_of(self, row: IdempotencyKey) -> str:
        if row.fingerprint != self.fingerprint:
            raise IdempotencyConflict("Idempotency-Key: this key was used with another request. Send a new key.")
        return row.result_id


def bound_among(requests: Collection[IdempotentRequest]) -> set[IdempotentRequest]:
    """Return those of these requests whose key is bound, by one query."""
    names = [[getattr(request, name) for request in requests] for name in ("principal", "operation", "key")]
    bound = set(fetch_all(_BOUND, names)) if requests else set()
    return {request for request in requests if (request.principal, request.operation, request.key) in bound}


def key_of(result_id: str) -> str | None:
    """Return the key that is bound to this result, or None: it had none, or retention has deleted it.

    Args:
        result_id: The id of a job. Callers must have checked that the client may see the job.
    """
    return next(iter(IdempotencyKey.objects.filter(result_id=result_id).values_list("key", flat=True)[:1]), None)


@contextmanager
def replays_before_refusals(uow: UnitOfWork) -> Iterator[None]:
    """Let no optimistic attempt with a key refuse a request: the key may be bound, and a repetition is not refused.

    Raises:
        NeedsTransaction: The block refused. A transaction looks at the key first.
    """
    try:
        yield
    except LifecycleError:
        if uow.idempotency_keys:
            uow.require_transaction()
        raise


def fingerprint_of(body: Any) -> str:
    """Return the SHA-256 of a parsed JSON body. Spaces and the order of keys do not matter."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
