"""The type of an invariant."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Invariant:
    """A rule about the database.

    Attributes:
        code: A stable name, for example `I8c`.
        rule: The rule, as a sentence.
        broken: SQL that returns the rows that break the rule, in one text column.
    """

    code: str
    rule: str
    broken: str


def listed(values: Iterable[str]) -> str:
    """Return states as an SQL list; the values are constants of this code."""
    return ", ".join(f"'{value}'" for value in values)
