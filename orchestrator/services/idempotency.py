"""Requests that may be repeated: the first one counts, the same again gets its result, another one is a conflict."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runtime_jobs.errors import IdempotencyConflict
from runtime_jobs.models import IdempotencyKey


@dataclass(frozen=True)
class IdempotentRequest:
    """A key that a principal sent with a request. `operation` names the verb and its target."""

    principal: str
    operation: str
    key: str
    fingerprint: str

    def settle(self, result_id: str, *, at: datetime) -> str:
        """Inside the verb's transaction: bind the key to this result, or return the result that it is bound to.

        A second request that comes at the same time waits here for the first one's end. Raises IdempotencyConflict."""
        IdempotencyKey.objects.bulk_create([self._row(result_id, at)], ignore_conflicts=True)
        return self._checked(IdempotencyKey.objects.get(**self._name))

    def known(self) -> str | None:
        """The result that the key is bound to already. Raises IdempotencyConflict."""
        row = IdempotencyKey.objects.filter(**self._name).first()
        return None if row is None else self._checked(row)

    def forget(self) -> None:
        """Unbind the key, because what it stands for does not count any more."""
        IdempotencyKey.objects.filter(**self._name).delete()

    @property
    def _name(self) -> dict[str, str]:
        return {"principal": self.principal, "operation": self.operation, "key": self.key}

    def _row(self, result_id: str, at: datetime) -> IdempotencyKey:
        return IdempotencyKey(**self._name, fingerprint=self.fingerprint, result_id=result_id, created_at=at)

    def _checked(self, row: IdempotencyKey) -> str:
        if row.fingerprint != self.fingerprint:
            raise IdempotencyConflict("This Idempotency-Key was used with another request.")
        return row.result_id


def fingerprint_of(body: Any) -> str:
    """SHA-256 of a parsed JSON body, so that spaces and the order of keys do not count."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
