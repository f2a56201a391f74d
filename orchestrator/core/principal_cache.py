"""Keeps the principals of valid tokens for at most a second, by the SHA-256 of the token.

A change of a token, worker or pool reaches the cache in three ways. The process that makes the change clears its cache
after the commit. Triggers notify all processes that listen (`orchestrator/migrations/0002_triggers.py`).
A process that receives no notification still reads each token again after AUTH_CACHE_SECONDS.
"""

import threading
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models.signals import post_delete, post_save

from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal
from runtime_jobs.models import ApiToken, Organization
from workers.models import Pool, Worker

CHANNEL = "credentials"  # its notifications have no payload: a change empties the cache
MAX_ENTRIES = 10_000
MAX_SECONDS = 1.0

Principal = ClientPrincipal | WorkerPrincipal


class _Entry(NamedTuple):
    principal: Principal
    valid_until: float


class PrincipalCache:
    """Principals by the digest of their token. Threads share one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}  # the oldest first, and each is valid for equally long
        self.generation = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: str, *, now: float) -> Principal | None:
        """Return the principal of a token that was valid within the last second, else None.

        Args:
            digest: The SHA-256 of the token.
            now: Seconds on the monotonic clock.
        """
        entry = self._entries.get(digest)
        return entry.principal if entry and now < entry.valid_until else None

    def put(self, digest: str, principal: Principal, *, valid_until: float, generation: int) -> None:
        """Keep a principal, unless the cache was cleared after its token was read.

        Args:
            digest: The SHA-256 of the token.
            principal: The caller that the token identifies.
            valid_until: Seconds on the monotonic clock.
            generation: The value of `generation` before the token was read. A revocation that was committed during
                the query may not be in its result.
        """
        with self._lock:
            if generation != self.generation:
                return
            self._entries.pop(digest, None)
            if len(self._entries) >= MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            self._entries[digest] = _Entry(principal, valid_until)

    def clear(self) -> None:
        """Forget all principals, and those that are being read now."""
        with self._lock:
            self.generation += 1
            self._entries.clear()


principals = PrincipalCache()


def _clear_after_commit(**_: Any) -> None:
    transaction.on_commit(principals.clear)


for _model in (ApiToken, Organization, Pool, Worker):
    for _signal in (post_save, post_delete):
        _signal.connect(_clear_after_commit, sender=_model, dispatch_uid=f"principal_cache.{_model.__name__}")
