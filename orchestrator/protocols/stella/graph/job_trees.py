"""Reads jobs with all children that a document requests, with a constant number of statements for each level.

Neighbours take one statement for each level. Then one statement reads the attempts of all jobs at any level, another
one their events, and three the reasons why those of them wait that are queued. `jobs.wire` renders everything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import StoredEvent, newest_events_of_jobs
from orchestrator.protocols.stella.graph.selections import JobSelection, NeighbourSelection
from orchestrator.protocols.stella.jobs import wire
from orchestrator.selectors.job_attempts import ReadAttempt, newest_attempts_of
from orchestrator.selectors.job_graph import neighbours_of
from orchestrator.selectors.orchestration_statuses import JobStanding, standings_of


@dataclass
class JobNode:
    """A job at one place of the result. A job that is a neighbour of several others has a node for each."""

    root: str
    selection: JobSelection
    before: list["JobNode"] = field(default_factory=list)
    after: list["JobNode"] = field(default_factory=list)


@dataclass(frozen=True)
class _Rows:
    attempts: dict[str, list[ReadAttempt]]
    standings: dict[int, JobStanding]
    events: dict[str, list[StoredEvent]]


def read_job_trees(roots: Sequence[str], selection: JobSelection) -> list[dict[str, Any]]:
    """Return jobs with their children, in this order. A job that was deleted meanwhile is left out.

    Args:
        roots: Root ids.
        selection: The requested children.
    """
    nodes = [JobNode(root, selection) for root in roots]
    all_nodes = _with_neighbours(nodes)
    rows = _read(all_nodes)
    return list(_render_all(nodes, rows))


def _with_neighbours(nodes: list[JobNode]) -> list[JobNode]:
    """Add the neighbours that are requested, level by level, and return the nodes of all levels."""
    found, level = list(nodes), nodes
    while level:
        neighbours = neighbours_of(
            _largest((node.root, _limit(node.selection.before)) for node in level),
            _largest((node.root, _limit(node.selection.after)) for node in level),
        )
        for node in level:
            node.before = _neighbour_nodes(node.selection.before, neighbours.before.get(node.root, []))
            node.after = _neighbour_nodes(node.selection.after, neighbours.after.get(node.root, []))
        level = [neighbour for node in level for neighbour in (*node.before, *node.after)]
        found += level
    return found


def _neighbour_nodes(selection: NeighbourSelection | None, roots: list[str]) -> list[JobNode]:
    return [JobNode(root, selection.children) for root in roots[: selection.limit]] if selection else []


def _limit(selection: NeighbourSelection | None) -> int:
    return selection.limit if selection else 0


def _largest(limits: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the largest limit of each root, without those that are 0."""
    found: dict[str, int] = {}
    for root, limit in limits:
        if limit:
            found[root] = max(limit, found.get(root, 0))
    return found


def _read(nodes: list[JobNode]) -> _Rows:
    attempts = newest_attempts_of(_largest((node.root, max(1, node.selection.attempts)) for node in nodes))
    newest = [found[0] for found in attempts.values()]
    incidents = {read.job.job_ulid: read.incident for read in newest if read.incident is not None}
    return _Rows(
        attempts,
        standings_of([read.job for read in newest], incidents),
        newest_events_of_jobs(_largest((node.root, node.selection.events) for node in nodes)),
    )


def _render_all(nodes: list[JobNode], rows: _Rows) -> Iterable[dict[str, Any]]:
    return (_render(node, rows) for node in nodes if node.root in rows.attempts)


def _render(node: JobNode, rows: _Rows) -> dict[str, Any]:
    attempts = rows.attempts[node.root]
    newest = attempts[0]
    standing = rows.standings[newest.job.pk]
    return wire.serialize_listed_job(newest.job, standing, newest.requested_at) | {
        **wire.serialize_progress(newest.job, standing),
        "attempts": [wire.serialize_attempt(read.job, read.worker_id) for read in attempts[: node.selection.attempts]],
        "events": [envelope_of(event) for event in rows.events.get(node.root, [])[: node.selection.events]],
        "dependencies": list(_render_all(node.before, rows)),
        "dependents": list(_render_all(node.after, rows)),
    }
