"""Finds jobs that waited while a worker had nothing and no limit applied.

Leases are compared afterwards with the claims that found nothing. All times are seconds of this machine's clock,
PostgreSQL's too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.histogram import spread

Span = tuple[float, float]


@dataclass(frozen=True)
class Held:
    """A lease: when the claim that got it was sent, when it began, and when its holder knew of its end."""

    asked: float
    begin: float
    end: float


@dataclass
class FreeIntervals:
    """Intervals of one tenant.

    `free`: it had a free slot and jobs without a break, and no claim was on the way to them. `waits`: seconds from the
    free slot, or from the claim before, to the next claim; all workers may have run others' jobs meanwhile.
    """

    free: list[Span] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


def free_intervals(limit: int, leases: Sequence[Held], begins: float) -> FreeIntervals:
    """Return the intervals of a tenant with free slots and waiting jobs; its jobs wait until the last lease begins."""
    intervals, held, free_from, claimed = FreeIntervals(), 0, begins, begins
    for now, change, asked in sorted([(o.begin, 1, o.asked) for o in leases] + [(o.end, -1, o.end) for o in leases]):
        if change == 1 and held < limit:
            intervals.waits.append(now - max(free_from, claimed))
        if held == limit and change == -1:
            free_from = now
        elif held == limit - 1 and change == 1:
            intervals.free.append((free_from, max(free_from, asked)))
        claimed = now if change == 1 else claimed
        held += change
    last = max(leases, key=lambda lease: lease.begin)
    if free_from < last.asked and held < limit:  # after its last claim a tenant has no jobs
        intervals.free.append((free_from, last.asked))
    return intervals


def unused(limits: Mapping[str, int], leases: Mapping[str, Sequence[Held]], result: dict[str, Any]) -> dict[str, Any]:
    """Return `waits` of all tenants as a distribution, and `missed`.

    `missed` counts claims that found nothing while one and the same tenant had a free slot and jobs from before until
    after. `result`: what the load recorded.
    """
    tenants = [free_intervals(limits[org], held, result["began"]) for org, held in leases.items()]
    missed = sum(1 for empty in result["empties"] if any(_covers(intervals.free, empty) for intervals in tenants))
    return {"waits": spread(list(_all(tenants))), "empty": len(result["empties"]), "missed": missed}


def _all(tenants: Iterable[FreeIntervals]) -> Iterator[float]:
    for intervals in tenants:
        yield from intervals.waits


def _covers(spans: Sequence[Span], inner: Sequence[float]) -> bool:
    index = bisect_right(spans, inner[0], key=lambda span: span[0]) - 1
    return index >= 0 and spans[index][1] > inner[1]
