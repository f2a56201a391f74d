"""The end of a job's log, and what was appended since. Both are bounded, whatever the size of the log."""

import re
from dataclasses import dataclass, replace
from typing import Any

import orjson

from orchestrator.results.outputs import output_name, read_output
from orchestrator.step_logs.log_tails import TAIL_BYTES, plain_text
from orchestrator.step_logs.step_log_reads import LogPosition, locate, log_sizes, read_part
from runtime_jobs.models import Job
from runtime_jobs.specs.oci import OCI, config_of

UNREADABLE = "(The storage of logs does not answer. Reload the page later.)\n"

_PLACE = re.compile(r"(\d{1,9})\.(\d{1,15})", re.ASCII)
_CURSOR = re.compile(rf"{_PLACE.pattern}(-{_PLACE.pattern})*", re.ASCII)


@dataclass(frozen=True)
class LogPage:
    """A part of a log.

    Attributes:
        text: Plain text.
        cursor: The number of the next byte of each step, such as `0.512-1.20`; empty before the first byte.
        truncated: Earlier output was left out.
        ended: No more output can follow.
    """

    text: str
    cursor: str
    truncated: bool
    ended: bool

    @property
    def event_id(self) -> str:
        """The id of an event of the live log after which `cursor` continues."""
        return "0" + "".join(f"-{place}.0" for place in self.cursor.split("-") if place)


def tail(job: Job) -> LogPage:
    """Read the end of a log, TAIL_BYTES of it; of a job of type `oci` the end of its stored output.

    While the storage does not answer, the rest of the page remains readable: the text explains what is missing.
    """
    if job.job_type == OCI:
        raw = _stored_output(job)
        text = plain_text(raw[-TAIL_BYTES:])
        return LogPage(text, "", truncated=len(raw) > TAIL_BYTES, ended=job.is_final)
    sizes, room, starts = log_sizes(job.job_ulid), TAIL_BYTES, {}
    for step, size in reversed(sizes):
        starts[step] = size - min(size, room)
        room -= min(size, room)
    try:
        return _read(job, sizes, starts, truncated=any(starts.values()))
    except OSError:
        return LogPage(UNREADABLE, "", truncated=False, ended=job.is_final)


def after(job: Job, cursor: str) -> LogPage:
    """Read what follows a cursor. The caller reads `job` first, so its end is not seen before its last output."""
    known = {int(step): int(byte) for step, byte in _PLACE.findall(cursor)} if _CURSOR.fullmatch(cursor) else {}
    try:
        page = _read(job, log_sizes(job.job_ulid), known, truncated=False)
    except OSError:  # the page asks again
        return LogPage("", cursor, truncated=False, ended=False)
    return replace(page, ended=job.is_final and page.cursor == cursor)


def _read(job: Job, sizes: list[tuple[int, int]], starts: dict[int, int], *, truncated: bool) -> LogPage:
    """Read the log of each step from its start on, TAIL_BYTES at most together."""
    places, raw = {step: min(starts.get(step, 0), size) for step, size in sizes}, bytearray()
    for step, size in sizes:
        position = LogPosition()
        if 0 < places[step] < size:
            position = locate(job.job_ulid, step, places[step])
        while places[step] < size and len(raw) < TAIL_BYTES:
            part = read_part(job.job_ulid, step, position, limit=min(TAIL_BYTES - len(raw), size - position.byte))
            if part.position == position:
                break
            raw += part.data
            position = part.position
            places[step] = position.byte
    cursor = "-".join(f"{step}.{byte}" for step, byte in places.items() if byte)
    if truncated:  # begin with a whole line
        del raw[: raw.find(b"\n") + 1]
    return LogPage(plain_text(bytes(raw)), cursor, truncated=truncated, ended=job.is_final)


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
