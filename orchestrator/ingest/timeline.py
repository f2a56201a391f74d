"""Lays out the processes of a run as a chart: the tree from top to bottom, time from left to right. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

WIDTH = 1000  # of the chart, in units of its view box
MIN_WIDTH = 4
MAX_DEPTH = 12  # deeper rows are not indented further
TICKS = 5

Item = dict[str, Any]


@dataclass(frozen=True)
class TimelineRow:
    """A process. `x` and `width` are in units of the chart; `seconds` is None if the end is unknown."""

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
        """Return the exit code or signal as text."""
        if self.item.get("signal"):
            return str(self.item["signal"])
        code = self.item.get("exit_code")
        return "end not traced" if code is None else f"exit {code}"

    @property
    def outcome(self) -> str:
        """Return the class for the colour: `bad` has a finding, `killed`, `failed` or `fine`."""
        if self.item.get("rules"):
            return "bad"
        if self.item.get("signal"):
            return "killed"
        return "failed" if self.item.get("exit_code") else "fine"


@dataclass(frozen=True)
class ProcessTimeline:
    """The chart. `ticks` are seconds since the start, evenly distributed over the width."""

    rows: list[TimelineRow]
    seconds: float

    @property
    def ticks(self) -> list[float]:
        return [self.seconds * place / (TICKS - 1) for place in range(TICKS)]


def timeline(items: list[Item]) -> ProcessTimeline:
    """Lay out the process list of a payload. Tolerates times out of range, cycles and missing parents."""
    if not items:
        return ProcessTimeline([], 0.0)
    begins = [datetime.fromisoformat(item["first_seen"]) for item in items]
    ends = [datetime.fromisoformat(item["ended_at"]) for item in items if item.get("ended_at")]
    start, stop = min(begins), max([*begins, *ends])
    seconds = max((stop - start).total_seconds(), 0.001)
    return ProcessTimeline([_row(item, depth, start, seconds) for item, depth in _in_tree_order(items)], seconds)


def _row(item: Item, depth: int, start: datetime, seconds: float) -> TimelineRow:
    first_seen = datetime.fromisoformat(item["first_seen"])
    began = (first_seen - start).total_seconds()
    ended = datetime.fromisoformat(item["ended_at"]) if item.get("ended_at") else None
    lived = (ended - first_seen).total_seconds() if ended else None
    width = round(WIDTH * max(lived if lived is not None else seconds - began, 0.0) / seconds)
    x = min(round(WIDTH * began / seconds), WIDTH - MIN_WIDTH)
    return TimelineRow(item, min(depth, MAX_DEPTH), x, max(MIN_WIDTH, min(width, WIDTH - x)), began, lived)


def _in_tree_order(items: list[Item]) -> Iterator[tuple[Item, int]]:
    """Yield each process below its parent, siblings by their first event.

    A process id may be reused: then the newest process before the child is its parent.
    """
    children: dict[int | None, list[int]] = {}
    for place in range(len(items)):
        children.setdefault(_parent(items, place), []).append(place)
    stack = [(place, 0) for place in reversed(children.get(None, []))]
    while stack:
        place, depth = stack.pop()
        yield items[place], depth
        stack.extend((child, depth + 1) for child in reversed(children.get(place, [])))


def _parent(items: list[Item], place: int) -> int | None:
    """Find the parent among earlier items only, so there is no cycle and no process is left out."""
    wanted = items[place].get("parent_pid")
    earlier = (before for before in range(place - 1, -1, -1) if items[before]["pid"] == wanted)
    return None if wanted is None else next(earlier, 0 if place else None)
