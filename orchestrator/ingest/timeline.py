"""A run's processes as rows of a chart: the tree from top to bottom, time from left to right. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

WIDTH = 1000  # of the chart, in its own units
NARROWEST = 4
DEEPEST = 12  # deeper rows are not indented further
TICKS = 5

Item = dict[str, Any]


@dataclass(frozen=True)
class TimelineRow:
    """One process. `x` and `width` are in units of the chart; `seconds` is None while its end is not known."""

    item: Item
    depth: int
    x: int
    width: int
    began: float
    seconds: float | None

    @property
    def name(self) -> str:
        return str(self.item.get("command") or (self.item["exec_paths"] or [""])[-1])

    @property
    def ended(self) -> str:
        """How it ended, in a word or two."""
        if self.item.get("signal"):
            return str(self.item["signal"])
        code = self.item.get("exit_code")
        return "no end seen" if code is None else f"exit {code}"

    @property
    def mood(self) -> str:
        """For its colour: `bad` broke a rule, `killed`, `failed`, else `fine`."""
        if self.item.get("rules"):
            return "bad"
        if self.item.get("signal"):
            return "killed"
        return "failed" if self.item.get("exit_code") else "fine"


@dataclass(frozen=True)
class ProcessTimeline:
    """`ticks` are seconds since the start, evenly spread over the width."""

    rows: list[TimelineRow]
    seconds: float

    @property
    def ticks(self) -> list[float]:
        return [self.seconds * place / (TICKS - 1) for place in range(TICKS)]


def timeline(items: list[Item]) -> ProcessTimeline:
    """Draw what the payload's process list says; times outside of it, cycles and missing parents do no harm."""
    if not items:
        return ProcessTimeline([], 0.0)
    begins = [_at(item["first_seen"]) for item in items]
    ends = [_at(item["ended_at"]) for item in items if item.get("ended_at")]
    start, stop = min(begins), max([*begins, *ends])
    seconds = max((stop - start).total_seconds(), 0.001)
    return ProcessTimeline([_row(item, depth, start, seconds) for item, depth in _in_tree_order(items)], seconds)


def _row(item: Item, depth: int, start: datetime, seconds: float) -> TimelineRow:
    began = (_at(item["first_seen"]) - start).total_seconds()
    lived = (_at(item["ended_at"]) - _at(item["first_seen"])).total_seconds() if item.get("ended_at") else None
    width = round(WIDTH * max(lived if lived is not None else seconds - began, 0.0) / seconds)
    x = min(round(WIDTH * began / seconds), WIDTH - NARROWEST)
    return TimelineRow(item, min(depth, DEEPEST), x, max(NARROWEST, min(width, WIDTH - x)), began, lived)


def _in_tree_order(items: list[Item]) -> Iterator[tuple[Item, int]]:
    """Every process below its parent, siblings by their first sign of life. A number may be used twice: then the
    newest one before the child is its parent."""
    children: dict[int | None, list[int]] = {}
    for place in range(len(items)):
        children.setdefault(_parent(items, place), []).append(place)
    waiting = [(place, 0) for place in reversed(children.get(None, []))]
    while waiting:
        place, depth = waiting.pop()
        yield items[place], depth
        waiting.extend((child, depth + 1) for child in reversed(children.get(place, [])))


def _parent(items: list[Item], place: int) -> int | None:
    """Only an earlier item can be the parent: so there is no cycle, and nobody is lost."""
    wanted = items[place].get("parent_pid")
    earlier = (before for before in range(place - 1, -1, -1) if items[before]["pid"] == wanted)
    return None if wanted is None else next(earlier, 0 if place else None)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
