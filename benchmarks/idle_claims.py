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


def room_of(most: int, leases: Sequence[Held], begins: float) -> FreeIntervals:
    """All but the last had jobs behind them."""
    room, held, free_from, claimed = FreeIntervals(), 0, begins, begins
    for at, change, asked in sorted([(o.begin, 1, o.asked) for o in leases] + [(o.end, -1, o.end) for o in leases]):
        if change == 1 and held < most:
            room.waits.append(at - max(free_from, claimed))
        if held == most and change == -1:
            free_from = at
        elif held == most - 1 and change == 1:
            room.free.append((free_from, max(free_from, asked)))
        claimed = at if change == 1 else claimed
        held += change
    last = max(leases, key=lambda lease: lease.begin)
    if free_from < last.asked and held < most:  # after its last claim a tenant has no jobs
        room.free.append((free_from, last.asked))
    return room


def unused(limits: Mapping[str, int], leases: Mapping[str, Sequence[Held]], result: dict[str, Any]) -> dict[str, Any]:
    """Return `waits` of all tenants as a distribution, and `missed`.

    `missed` counts claims that found nothing while one and the same tenant had a free slot and jobs from before until
    after. `result`: what the load recorded.
    """
    rooms = [room_of(limits[org], held, result["began"]) for org, held in leases.items()]
    missed = sum(1 for empty in result["empties"] if any(_covers(room.free, empty) for room in rooms))
    return {"waits": spread(list(_all(rooms))), "empty": len(result["empties"]), "missed": missed}


def _all(rooms: Iterable[FreeIntervals]) -> Iterator[float]:
    for room in rooms:
        yield from room.waits


def _covers(spans: Sequence[Span], inner: Sequence[float]) -> bool:
    place = bisect_right(spans, inner[0], key=lambda span: span[0]) - 1
    return place >= 0 and spans[place][1] > inner[1]
