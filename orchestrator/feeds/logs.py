"""A job's output as plain text, once or until it has ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from runtime_jobs.models import Job, LogChunk

PERIOD = 0.5
LONGEST = 3600.0  # seconds that one follower may stay

Place = tuple[int, int]  # step and seq of the last chunk that was sent
START: Place = (0, -1)


def as_text(job: Job, *, follow: bool, request: HttpRequest) -> StreamingHttpResponse:
    """Raw bytes as text/plain. A follower under ASGI costs no thread and no database connection while it waits."""
    if not follow:
        content: Iterator[bytes] | AsyncIterator[bytes] = iter(list(_everything(job.job_ulid)))
    elif isinstance(request, ASGIRequest):
        content = _follow(job.job_ulid)
    else:
        content = _follow_in_thread(job.job_ulid)
    response = StreamingHttpResponse(content, content_type="text/plain; charset=utf-8")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _after(job_ulid: str, place: Place, limit: int = 20) -> tuple[list[bytes], Place]:
    step, seq = place
    rows = LogChunk.objects.filter(job_id=job_ulid).order_by("step", "seq")
    rows = rows.filter(step=step, seq__gt=seq) | rows.filter(step__gt=step)
    found = list(rows.values_list("step", "seq", "chunk")[:limit])
    return [bytes(chunk) for _, _, chunk in found], (found[-1][:2] if found else place)


def _everything(job_ulid: str) -> Iterator[bytes]:
    chunks, place = _after(job_ulid, START)
    while chunks:
        yield from chunks
        chunks, place = _after(job_ulid, place)


def _look(job_ulid: str, place: Place) -> tuple[list[bytes], Place, bool]:
    """The next chunks, and whether nothing more can come. The end is asked for first: what was written before it is
    then seen."""
    ended = Job.objects.get(job_ulid=job_ulid).is_final
    chunks, place = _after(job_ulid, place)
    return chunks, place, ended and not chunks


async def _follow(job_ulid: str) -> AsyncIterator[bytes]:
    place, until = START, time.monotonic() + LONGEST
    while time.monotonic() < until:
        chunks, place, ended = await sync_to_async(_look)(job_ulid, place)
        for chunk in chunks:
            yield chunk
        if ended:
            return
        if not chunks:
            await asyncio.sleep(PERIOD)


def _follow_in_thread(job_ulid: str) -> Iterator[bytes]:
    place, until = START, time.monotonic() + LONGEST
    while time.monotonic() < until:
        chunks, place, ended = _look(job_ulid, place)
        yield from chunks
        if ended:
            return
        if not chunks:
            time.sleep(PERIOD)
