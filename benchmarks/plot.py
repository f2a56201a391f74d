"""Draws a chart as SVG: two lines over a logarithmic axis, with colours for light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 56, 52
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328 }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .large { stroke: #0969da; fill: none; stroke-width: 2.5 } .large-dot, text.large-name { fill: #0969da; stroke: none }
  .small { stroke: #8c959f; fill: none; stroke-width: 2; stroke-dasharray: 5 4 }
  .small-dot, text.small-name { fill: #8c959f; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .title { fill: #f0f6fc } .grid { stroke: #3d444d }
    .large { stroke: #4493f8 } .large-dot, text.large-name { fill: #4493f8 }
  }
"""


class Measured(Protocol):
    """A point of the chart: two times in milliseconds, measured in turns, for one size."""

    @property
    def size(self) -> int: ...
    @property
    def large(self) -> float: ...
    @property
    def small(self) -> float: ...


@dataclass(frozen=True)
class Chart:
    """Milliseconds over `size`.

    Attributes:
        title: The heading.
        x_label: The name of the horizontal axis.
        points: The points, by ascending size.
    """

    title: str
    x_label: str
    points: Sequence[Measured]

    def drawn(self) -> str:
        """Return the text of the SVG file."""
        parts = [*self._frame(), *self._line("large", "this many"), *self._line("small", "1,000 jobs, just then")]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])

    @property
    def _top(self) -> float:
        """The first round number above all points. The axis begins at 0, or a flat line would seem steep."""
        limit = 1.25 * max(max(point.large, point.small) for point in self.points)
        step = 10 ** math.floor(math.log10(limit))
        return next(step * times for times in (1, 2, 4, 5, 10) if step * times >= limit)

    def _x(self, size: int) -> float:
        first, last = (math.log10(max(1, self.points[place].size)) for place in (0, -1))
        share = (math.log10(max(1, size)) - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def _y(self, milliseconds: float) -> float:
        return round(HEIGHT - BOTTOM - milliseconds / self._top * (HEIGHT - TOP - BOTTOM), 1)

    def _frame(self) -> list[str]:
        parts = [f'<text class="title" x="{LEFT}" y="28">{escape(self.title)}</text>']
        for quarter in range(5):
            value = self._top * quarter / 4
            y = self._y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g} ms</text>')
        below = HEIGHT - BOTTOM + 20
        parts += [
            f'<text x="{self._x(point.size)}" y="{below}" text-anchor="middle">{point.size:,}</text>'
            for point in self.points
        ]
        middle = (LEFT + WIDTH - RIGHT) / 2
        return [*parts, f'<text x="{middle}" y="{below + 20}" text-anchor="middle">{self.x_label}</text>']

    def _line(self, name: str, label: str) -> list[str]:
        places = [(self._x(point.size), self._y(getattr(point, name))) for point in self.points]
        path = " ".join(f"{x},{y}" for x, y in places)
        dots = [f'<circle class="{name}-dot" cx="{x}" cy="{y}" r="3.5"/>' for x, y in places]
        x, y = places[-1]
        shift = -10 if name == "large" else 18
        return [
            f'<polyline class="{name}" points="{path}"/>',
            *dots,
            f'<text class="{name}-name" x="{x + 10}" y="{y + shift}">{label}</text>',
        ]
