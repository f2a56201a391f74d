"""The end of the log of each step of a job, as text for a page. It is bounded, whatever the size of the log."""

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.step_logs.step_log_reads import LogPosition, locate, log_sizes, read_part

TAIL_BYTES: Final = 64 << 10  # of all steps of a job together

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_LEASE_ID = re.compile(r"rtl_[0-9A-Za-z]{26}")


@dataclass(frozen=True)
class StepTail:
    """The end of the log of one step.

    Attributes:
        text: Plain text.
        next_byte: The number of the byte that follows in the log.
        is_truncated: Earlier output was left out.
    """

    text: str
    next_byte: int
    is_truncated: bool


def tails_of(job_ulid: str) -> dict[int, StepTail]:
    """Return the end of the log of each step that has output. Later steps have precedence over earlier ones.

    Args:
        job_ulid: The job.

    Raises:
        OSError: The storage of logs does not answer.
    """
    found: dict[int, StepTail] = {}
    room = TAIL_BYTES
    for step, size in reversed(log_sizes(job_ulid)):
        if not size:
            continue
        start = size - min(size, room)
        raw = _read(job_ulid, step, start, size)
        room -= size - start
        if start:  # begin with a whole line
            raw = raw[raw.find(b"\n") + 1 :]
        found[step] = StepTail(plain_text(raw), size, start > 0)
    return found


def plain_text(raw: bytes) -> str:
    """Convert output to what a terminal would display, without colours, control characters and overwritten lines.

    A lease id is a credential, and a worker's message may quote an address with one: it is replaced, too.
    """
    text = _ESCAPES.sub("", raw.decode(errors="replace"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return redact_lease_ids(_CONTROL.sub("", "\n".join(lines)))


def redact_lease_ids(text: str) -> str:
    """Remove lease ids from a text for a page."""
    return _LEASE_ID.sub("(lease id)", text)


def _read(job_ulid: str, step: int, start: int, size: int) -> bytes:
    """Read the bytes of a log from `start` to `size`."""
    raw, position = bytearray(), locate(job_ulid, step, start) if 0 < start < size else LogPosition(start)
    while position.byte < size:
        part = read_part(job_ulid, step, position, limit=size - position.byte)
        if part.position == position:  # deleted meanwhile
            break
        raw += part.data
        position = part.position
    return bytes(raw)
