"""A job's output as plain text, once or until it has ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from django.core.handlers.asgi import ASGIRequest
from django.db.models import Q
from django.http import HttpRequest, StreamingHttpResponse

from orchestrator.looks import awaited, brief
from runtime_jobs.models import Job, LogChunk

PERIOD = 0.5
LONGEST = 3600.0  # seconds that one follower may stay

Place = tuple[int, int]  # step and seq of the last chunk that was sent
START: Place = (0, -1)


def as_text(job: Job, *, follow: bool, request: HttpRequest) -> StreamingHttpResponse:
    """Raw bytes as text/plain. A follower holds no database connection while it waits."""
    read = _read if isinstance(request, ASGIRequest) else _read_in_thread
    response = StreamingHttpResponse(read(job.job_ulid, follow=follow), content_type="text/plain; charset=utf-8")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _look(job_ulid: str, place: Place, *, follow: bool) -> tuple[list[bytes], Place, bool]:
    """The next chunks, and whether that was all. The job's end is asked for first: what was written before it is then
    seen."""
    ended = not follow or Job.objects.get(job_ulid=job_ulid).is_final
    chunks, place = _after(job_ulid, place)
    return chunks, place, ended and not chunks


def _after(job_ulid: str, place: Place, limit: int = 20) -> tuple[list[bytes], Place]:
    step, seq = place
    later = Q(step=step, seq__gt=seq) | Q(step__gt=step)
    rows = LogChunk.objects.filter(later, job_id=job_ulid).order_by("step", "seq")
    found = list(rows.values_list("step", "seq", "chunk")[:limit])
    return [bytes(chunk) for _, _, chunk in found], (found[-1][:2] if found else place)


async def _read(job_ulid: str, *, follow: bool) -> AsyncIterator[bytes]:
    place, until, ended = START, time.monotonic() + LONGEST, False
    while not ended and time.monotonic() < until:
        chunks, place, ended = await awaited(_look)(job_ulid, place, follow=follow)
        for chunk in chunks:
            yield chunk
        if not chunks and not ended:
            await asyncio.sleep(PERIOD)


def _read_in_thread(job_ulid: str, *, follow: bool) -> Iterator[bytes]:
    place, until, ended = START, time.monotonic() + LONGEST, False
    while not ended and time.monotonic() < until:
        chunks, place, ended = brief(_look)(job_ulid, place, follow=follow)
        yield from chunks
        if not chunks and not ended:
            time.sleep(PERIOD)
