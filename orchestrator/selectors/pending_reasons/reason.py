"""Defines the reason why a job waits: a code of a closed list, a message for people, and facts for programs."""

from dataclasses import dataclass, field
from typing import Any

from django.db.models import TextChoices

from runtime_jobs.models import Job


class ReasonCode(TextChoices):
    """The codes of reasons."""

    APPROVAL = "approval"
    CONCURRENCY_GROUP = "concurrency_group"
    DEPENDS_ON = "depends_on"
    POOL_PAUSED = "pool_paused"
    BREAKER_OPEN = "breaker_open"
    NO_MATCHING_WORKER = "no_matching_worker"
    ORGANIZATION_LIMIT = "organization_limit"
    SOURCE_ADDRESS_LIMIT = "source_address_limit"
    RATE_LIMITED = "rate_limited"
    ALL_WORKERS_BUSY = "all_workers_busy"
    BEHIND = "behind"
    LATE_RESULT = "late_result"


@dataclass(frozen=True)
class WaitReason:
    """The reason why a job waits.

    Attributes:
        code: The code.
        message: A sentence for people.
        facts: JSON values, except for timestamps, by stable names.
    """

    code: ReasonCode
    message: str
    facts: dict[str, Any] = field(default_factory=dict)


def late_result_reason(job: Job) -> WaitReason:
    """Return why a lost job has not ended."""
    until = job.late_result_at
    time = f" until {until:%Y-%m-%dT%H:%M:%SZ}" if until else ""
    cause = job.failure_message or f"The job has no result: {job.failure_reason}."
    message = f"{cause} A late result of the worker still counts{time}. Without one the job fails."
    return WaitReason(ReasonCode.LATE_RESULT, message, {"next_at": until})


def several(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 job` or `2 jobs`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def are(number: int, noun: str) -> str:
    """Return the begin of a sentence, such as `1 worker is` or `2 workers are`."""
    return f"{several(number, noun)} {'is' if number == 1 else 'are'}"


def join_words(words: list[str], *, limit: int = 5) -> str:
    """Join words as in a sentence, such as `a, b and c`, or `a, b and 7 more` above the limit."""
    parts = words if len(words) <= limit else [*words[: limit - 1], f"{len(words) - limit + 1} more"]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""
