"""Plans the faults of a run from its seed, so that one seed causes the same faults at the same times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

QUIET_SECONDS = 2.0  # at the start, so that there is something to break
GAP_SECONDS = (5.0, 10.0)
DOWN_SECONDS = (0.0, 2.0)
PAUSE_SECONDS = (4.0, 14.0)  # on both sides of a lease's life

KINDS = (
    *("server", "clock", "worker", "worker", "pause", "runner", "runner"),
    *("postgres-kill", "postgres-immediate", "postgres-backend", "postgres-demotion"),
    *("housekeeping", "storage", "workflow-runner", "dispatcher", "disk"),
)


@dataclass(frozen=True)
class Fault:
    """`at`: seconds since the start. `target`: a number that picks one of several. `lasts`: until it is mended."""

    at: float
    kind: str
    target: int
    lasts: float


def schedule(seed: int, seconds: float) -> list[Fault]:
    """Every kind once in each round of all kinds, in a new order each time."""
    chance = Random(f"{seed}/faults")
    at, faults = QUIET_SECONDS, []
    for kind in _rounds(chance):
        if at >= seconds:
            return faults
        lasts = chance.uniform(*(PAUSE_SECONDS if kind in {"pause", "disk"} else DOWN_SECONDS))
        faults.append(Fault(round(at, 2), kind, chance.randrange(1 << 16), round(lasts, 2)))
        at += chance.uniform(*GAP_SECONDS)
    return faults


def _rounds(chance: Random) -> Iterator[str]:
    while True:
        yield from chance.sample(KINDS, len(KINDS))
