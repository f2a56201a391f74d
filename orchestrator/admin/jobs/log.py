"""The end of a job's log, and what was appended since. Both are bounded, whatever the size of the log."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from django.db.models import Q, QuerySet
from django.db.models.functions import Length

from orchestrator.admin.formatting import redact_lease_ids
from orchestrator.results.outputs import output_name, read_output
from runtime_jobs.models import Job, LogChunk
from runtime_jobs.specs.oci import OCI, config_of

TAIL_BYTES = 64 << 10
MAX_TAIL_CHUNKS = 200
MAX_CHUNKS_PER_POLL = 8

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True)
class LogPage:
    """A part of a log.

    Attributes:
        text: Plain text.
        cursor: `step.seq` of the last chunk in `text`; empty before the first chunk.
        truncated: Earlier output was left out.
        ended: No more output can follow.
    """

    text: str
    cursor: str
    truncated: bool
    ended: bool


def tail(job: Job) -> LogPage:
    """Read the last chunks of a log, about TAIL_BYTES of them; of a job of type `oci` the end of its stored output."""
    if job.job_type == OCI:
        raw = _stored_output(job)
        text = plain_text(raw[-TAIL_BYTES:])
        return LogPage(text, "", truncated=len(raw) > TAIL_BYTES, ended=job.is_final)
    sizes = list(_chunks(job).order_by("-step", "-seq").values_list("step", "seq", Length("chunk"))[:MAX_TAIL_CHUNKS])
    size, kept = 0, 0
    while kept < len(sizes) and (kept == 0 or size + sizes[kept][2] <= TAIL_BYTES):
        size += sizes[kept][2]
        kept += 1
    if not kept:
        return LogPage("", "", truncated=False, ended=job.is_final)
    step, seq, _ = sizes[kept - 1]
    rows = _chunks(job).filter(_since(step, seq)).order_by("step", "seq").values_list("step", "seq", "chunk")[:kept]
    return _log_page(list(rows), truncated=kept < len(sizes), ended=job.is_final, cursor="")


def after(job: Job, cursor: str) -> LogPage:
    """Read what follows a cursor. The caller reads `job` first, so its end is not seen before its last output."""
    known = _CURSOR.fullmatch(cursor)
    newer = _since(int(known[1]), int(known[2]) + 1) if known else Q()
    chunks = _chunks(job).filter(newer).order_by("step", "seq").values_list("step", "seq", "chunk")
    rows = list(chunks[:MAX_CHUNKS_PER_POLL])
    return _log_page(rows, truncated=False, ended=job.is_final and not rows, cursor=cursor if known else "")


def plain_text(raw: bytes) -> str:
    """Convert output to what a terminal would display, without colours, control characters and overwritten lines."""
    text = _ESCAPES.sub("", raw.decode(errors="replace"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return redact_lease_ids(_CONTROL.sub("", "\n".join(lines)))


def _stored_output(job: Job) -> bytes:
    """Return what the iterations of a job printed, with a line before each one. Files are left out."""
    name = output_name(job) if job.is_final else None
    try:
        body = None if name is None else read_output(config_of(job)["project"], name)
        iterations = orjson.loads(body or b"{}").get("results", [])
        return b"".join(_printed(number, iteration) for number, iteration in enumerate(iterations, start=1))
    except (OSError, ValueError, AttributeError, TypeError, KeyError):  # of another form, or not there
        return b""


def _printed(number: int, iteration: dict[str, Any]) -> bytes:
    texts = [f"--- iteration {number}, exit code {iteration.get('exit_code', 0)}"]
    texts += [text for name in ("stdout", "stderr") if (text := iteration.get(name))]
    return "".join(f"{text.rstrip()}\n" for text in texts).encode(errors="replace")


def _chunks(job: Job) -> QuerySet[LogChunk]:
    return LogChunk.objects.filter(job=job)


def _since(step: int, seq: int) -> Q:
    return Q(step=step, seq__gte=seq) | Q(step__gt=step)


def _log_page(
    rows: Sequence[tuple[int, int, bytes | memoryview]], *, truncated: bool, ended: bool, cursor: str
) -> LogPage:
    raw = b"".join(bytes(chunk) for _, _, chunk in rows)
    last = f"{rows[-1][0]}.{rows[-1][1]}" if rows else cursor
    truncated = truncated or len(raw) > TAIL_BYTES
    return LogPage(plain_text(raw[-TAIL_BYTES:]), last, truncated=truncated, ended=ended)
