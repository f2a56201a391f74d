"""The end of what a job has printed, and what came since: bounded, whatever its size."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.db.models.functions import Length

from orchestrator.admin.formatting import without_lease_ids
from runtime_jobs.models import Job, LogChunk

TAIL_BYTES = 64 << 10
CHUNKS = 200  # looked at for the tail
AT_ONCE = 8  # chunks in one answer to a poll

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PLACE = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True)
class LogPage:
    """Text, the place of its last chunk (`step.seq`, empty before the first), whether something was left out before
    it, and whether nothing more can come."""

    text: str
    place: str
    cut: bool
    ended: bool


def tail(job: Job) -> LogPage:
    """The last chunks, about TAIL_BYTES of them."""
    sizes = list(_chunks(job).order_by("-step", "-seq").values_list("step", "seq", Length("chunk"))[:CHUNKS])
    size, kept = 0, 0
    while kept < len(sizes) and (kept == 0 or size + sizes[kept][2] <= TAIL_BYTES):
        size += sizes[kept][2]
        kept += 1
    if not kept:
        return LogPage("", "", cut=False, ended=job.is_final)
    step, seq, _ = sizes[kept - 1]
    rows = _chunks(job).filter(_from(step, seq)).order_by("step", "seq").values_list("step", "seq", "chunk")[:kept]
    return _piece(list(rows), cut=kept < len(sizes), ended=job.is_final, place="")


def after(job: Job, place: str) -> LogPage:
    """What came after a place. `job` was read before, so that its end is not seen before its last words."""
    known = _PLACE.fullmatch(place)
    newer = _from(int(known[1]), int(known[2]) + 1) if known else Q()
    rows = list(_chunks(job).filter(newer).order_by("step", "seq").values_list("step", "seq", "chunk")[:AT_ONCE])
    return _piece(rows, cut=False, ended=job.is_final and not rows, place=place if known else "")


def _chunks(job: Job) -> QuerySet[LogChunk]:
    return LogChunk.objects.filter(job=job)


def _from(step: int, seq: int) -> Q:
    return Q(step=step, seq__gte=seq) | Q(step__gt=step)


def _piece(rows: Sequence[tuple[int, int, bytes | memoryview]], *, cut: bool, ended: bool, place: str) -> LogPage:
    raw = b"".join(bytes(chunk) for _, _, chunk in rows)
    last = f"{rows[-1][0]}.{rows[-1][1]}" if rows else place
    return LogPage(plain(raw[-TAIL_BYTES:]), last, cut=cut or len(raw) > TAIL_BYTES, ended=ended)


def plain(raw: bytes) -> str:
    """As a terminal would show it, without colours: no escape, no control character, no overwritten line."""
    text = _ESCAPES.sub("", raw.decode(errors="replace"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return without_lease_ids(_CONTROL.sub("", "\n".join(lines)))
