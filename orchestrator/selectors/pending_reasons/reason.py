"""Why a job waits: a code from a closed list, a sentence for people, and the facts behind it."""

from dataclasses import dataclass, field
from typing import Any

from django.db.models import TextChoices


class ReasonCode(TextChoices):
    DEPENDS_ON = "depends_on"
    POOL_PAUSED = "pool_paused"
    BREAKER_OPEN = "breaker_open"
    NO_MATCHING_WORKER = "no_matching_worker"
    ORGANIZATION_LIMIT = "organization_limit"
    SOURCE_ADDRESS_LIMIT = "source_address_limit"
    RATE_LIMITED = "rate_limited"
    ALL_WORKERS_BUSY = "all_workers_busy"
    BEHIND = "behind"


@dataclass(frozen=True)
class WaitReason:
    """`facts` are JSON but for times: numbers, words, lists, by names that do not change."""

    code: ReasonCode
    message: str
    facts: dict[str, Any] = field(default_factory=dict)


def several(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def are(number: int, noun: str, what: str = "") -> str:
    """As in: 1 worker is, 2 workers that … are."""
    return f"{several(number, noun)} {what} {'is' if number == 1 else 'are'}".replace("  ", " ")


def listing(words: list[str], *, most: int = 5) -> str:
    """As one says it: "a, b and c", or "a, b and 7 more"."""
    shown = words if len(words) <= most else [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else ""
