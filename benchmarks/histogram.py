"""Counts what a load has done within the time that counts, the time of each call, and unexpected responses."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts between `begins` and `ends` (of time.monotonic).

    `done` and `counts` are filled by the load. `finishes`: steps begun before the end count too, with their whole
    time: for few and large steps.
    """

    begins: float
    ends: float
    finishes: bool = False
    done: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    surprises: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *, warmup: float, seconds: float, finishes: bool = False) -> Tally:
        begins = time.monotonic() + warmup
        return cls(begins, begins + seconds, finishes)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    def add(self, number: int = 1) -> None:
        if self.begins <= time.monotonic() < self.ends or self.finishes:
            self.done += number

    def called(self, name: str, began: float) -> None:
        if began >= self.begins:
            self.seconds[name].append(time.monotonic() - began)

    def summary(self) -> dict[str, Any]:
        """As JSON: `rate` a second, milliseconds by call, surprises with an example each."""
        now = time.monotonic()
        elapsed = (now if self.finishes else min(now, self.ends)) - self.begins
        return {
            "done": self.done,
            "seconds": round(elapsed, 3),
            "rate": round(self.done / elapsed, 1) if self.done else None,
            "calls": {name: spread(took) for name, took in self.seconds.items()},
            "counts": dict(self.counts),
            "surprises": dict(self.surprises.most_common(5)),
            "facts": self.facts,
        }


def spread(seconds: list[float]) -> dict[str, float]:
    """Number, median, 99th percentile and longest, in milliseconds."""
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000, 2) for name, part in at.items()
    }
    return {"n": len(ordered), **found}
