"""Reads what the log of a job must not contain."""

from collections import OrderedDict
from threading import Lock
from typing import Final

from orchestrator.secrets.operations import masks_in
from runtime_jobs.models import Job, MaskSnapshot

MAX_CACHED_BYTES: Final = 64 << 20


class MaskCache:
    """Keeps opened snapshots. A snapshot of one fence of a job never changes, so an entry is never wrong.

    Without the cache each chunk of a log would read and open up to ten megabytes.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._entries: OrderedDict[tuple[str, int], tuple[bytes, ...]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[str, int]) -> tuple[bytes, ...] | None:
        """Return the entry of a job and fence, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: tuple[str, int], masks: tuple[bytes, ...]) -> None:
        """Add an entry. The least recently used ones are dropped while all have more than the limit."""
        with self._lock:
            self._drop(key)
            self._entries[key] = masks
            self._bytes += _size(masks)
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: tuple[str, int]) -> None:
        if key in self._entries:
            self._bytes -= _size(self._entries.pop(key))


def _size(masks: tuple[bytes, ...]) -> int:
    return 200 + sum(len(mask) + 50 for mask in masks)


_cache = MaskCache()


def masks_of(job: Job) -> tuple[bytes, ...]:
    """Return the texts that the log of a job must not contain, sorted.

    They are those of its last claim, whatever has happened to its secrets since. A job that was never claimed with
    secrets has none.

    Args:
        job: The job, with its current fence.

    Raises:
        SealedValueError: The snapshot cannot be opened. Nothing may be appended to the log then.
    """
    key = (job.job_ulid, job.fence)
    cached = _cache.get(key)
    if cached is not None:
        return cached
    snapshot = MaskSnapshot.objects.filter(job_id=job.job_ulid).first()
    masks = () if snapshot is None else masks_in(snapshot)
    if snapshot is not None and snapshot.fence == job.fence:
        _cache.put(key, masks)
    return masks
