"""Draws the jobs of a workflow run as a graph: each job right of the jobs that it needs, with a line from each of them.

The module is pure. It computes a drawing; a template writes it as SVG.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 200, 44  # of a job, in pixels
COLUMN, ROW = WIDTH + 56, HEIGHT + 14
MARGIN = 4
MAX_LABEL = 24  # characters that fit a job; the template displays the whole name when it is pointed at


@dataclass(frozen=True)
class GraphNode:
    """A job in the drawing.

    Attributes:
        key: The key of the job in the file.
        label: The name, shortened.
        name: The whole name.
        state: The conclusion, or the status of a job that has not ended.
        colour: The class of the colour.
        address: The page of the job; empty if the job has none.
        x: The left edge. Likewise `y`: the upper edge.
    """

    key: str
    label: str
    name: str
    state: str
    colour: str
    address: str
    x: int
    y: int

    @property
    def text_x(self) -> int:
        return self.x + 16

    @property
    def label_y(self) -> int:
        return self.y + 19

    @property
    def state_y(self) -> int:
        return self.y + 35


@dataclass(frozen=True)
class JobGraph:
    """The drawing.

    Attributes:
        width: The width in pixels. Likewise `height`.
        nodes: The jobs.
        lines: The path of each line, as the attribute `d` of an SVG path.
    """

    width: int
    height: int
    nodes: tuple[GraphNode, ...]
    lines: tuple[str, ...]

    @property
    def has_lines(self) -> bool:
        return bool(self.lines)


@dataclass(frozen=True)
class GraphJob:
    """A job to draw."""

    key: str
    name: str
    needs: tuple[str, ...]
    state: str
    colour: str
    address: str = ""


def draw_graph(jobs: Sequence[GraphJob]) -> JobGraph:
    """Place jobs in columns: the first one has the jobs without needs.

    Args:
        jobs: The jobs in the order of the file. Needs that are not among them are left out.
    """
    columns = _columns({job.key: job.needs for job in jobs})
    filled: dict[int, int] = {}
    nodes: dict[str, GraphNode] = {}
    for job in jobs:
        column = columns[job.key]
        row = filled.get(column, 0)
        filled[column] = row + 1
        nodes[job.key] = GraphNode(
            key=job.key,
            label=_shortened(job.name),
            name=job.name,
            state=job.state,
            colour=job.colour,
            address=job.address,
            x=MARGIN + column * COLUMN,
            y=MARGIN + row * ROW,
        )
    lines = tuple(
        _line(nodes[needed], nodes[job.key]) for job in jobs for needed in dict.fromkeys(job.needs) if needed in nodes
    )
    width = max((node.x for node in nodes.values()), default=0) + WIDTH + MARGIN
    height = max((node.y for node in nodes.values()), default=0) + HEIGHT + MARGIN
    return JobGraph(width, height, tuple(nodes.values()), lines)


def _columns(needs: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the column of each job: one more than the largest of its needs. The needs have no circle."""
    columns: dict[str, int] = {}
    waiting = dict(needs)
    while waiting:
        ready = {key: found for key, found in waiting.items() if not any(needed in waiting for needed in found)}
        if not ready:
            return columns | dict.fromkeys(waiting, 0)  # stored rows are displayed, whatever they contain
        for key, found in ready.items():
            columns[key] = max((columns[needed] + 1 for needed in found if needed in columns), default=0)
            del waiting[key]
    return columns


def _line(source: GraphNode, target: GraphNode) -> str:
    start, end = (source.x + WIDTH, source.y + HEIGHT // 2), (target.x, target.y + HEIGHT // 2)
    middle = end[0] - (COLUMN - WIDTH) // 2
    return f"M{start[0]} {start[1]} H{middle - 20} C{middle} {start[1]} {middle} {end[1]} {end[0]} {end[1]}"


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"
