"""The shape of an invariant."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Invariant:
    """`code` is stable; `rule` is the sentence that holds; `broken` finds its exceptions, one text column."""

    code: str
    rule: str
    broken: str


def listed(values: Iterable[str]) -> str:
    """States as an SQL list; they are our own constants."""
    return ", ".join(f"'{value}'" for value in values)
