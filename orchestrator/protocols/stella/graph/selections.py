"""Reads from a document which children of jobs it requests, so that all of them are read together.

The fields of each level are collected as the execution does it: a fragment is visited once for each level, however
often it is named there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import strawberry
from graphql import FieldNode, FragmentDefinitionNode, FragmentSpreadNode, SelectionSetNode

from orchestrator.protocols.stella.graph.limits import FIRST, integer_of, selections_of

Fields = dict[str, list[FieldNode]]


@dataclass(frozen=True)
class JobSelection:
    """The children of jobs that a document requests, each with the largest `first` of all its aliases. 0: none.

    Attributes:
        attempts: The newest attempts.
        events: The newest events.
        before: The jobs on which the jobs depend.
        after: The jobs that depend on them.
    """

    attempts: int = 0
    events: int = 0
    before: "NeighbourSelection | None" = None
    after: "NeighbourSelection | None" = None


@dataclass(frozen=True)
class NeighbourSelection:
    """The neighbours of jobs that a document requests.

    Attributes:
        limit: The largest number of them for each job.
        children: What it requests of each.
    """

    limit: int
    children: JobSelection


class _SelectionReader:
    """Collects fields of one operation."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], variables: Mapping[str, Any]) -> None:
        self._fragments, self._variables = fragments, variables

    def fields(self, nodes: Iterable[FieldNode]) -> Fields:
        """Return the fields below these ones by name."""
        found: Fields = {}
        seen: set[str] = set()
        for node in nodes:
            self._collect(node.selection_set, found, seen)
        return found

    def jobs(self, nodes: list[FieldNode]) -> JobSelection:
        """Return what is requested of the jobs that these fields return."""
        fields = self.fields(nodes)
        return JobSelection(
            self._limit(fields.get("attempts", [])),
            self._limit(fields.get("events", [])),
            self._neighbours(fields.get("dependencies", [])),
            self._neighbours(fields.get("dependents", [])),
        )

    def _neighbours(self, nodes: list[FieldNode]) -> NeighbourSelection | None:
        return NeighbourSelection(self._limit(nodes), self.jobs(nodes)) if nodes else None

    def _limit(self, nodes: Iterable[FieldNode]) -> int:
        given = (argument for node in nodes for argument in node.arguments or () if argument.name.value == FIRST)
        return max((integer_of(argument.value, self._variables) or 0 for argument in given), default=0)

    def _collect(self, selection_set: SelectionSetNode | None, found: Fields, seen: set[str]) -> None:
        for node in selections_of(selection_set):
            if isinstance(node, FieldNode):
                found.setdefault(node.name.value, []).append(node)
            elif not isinstance(node, FragmentSpreadNode):
                self._collect(node.selection_set, found, seen)
            elif node.name.value not in seen:
                seen.add(node.name.value)
                self._collect(self._fragments[node.name.value].selection_set, found, seen)


def selected_jobs(info: strawberry.Info[Any, Any], *path: str) -> JobSelection:
    """Return what the document requests of jobs.

    Args:
        info: The field that is resolved.
        path: The names of the fields from there to the jobs.
    """
    raw = info._raw_info  # noqa: SLF001 strawberry's own form expands each fragment each time that it is named
    reader = _SelectionReader(raw.fragments, info.variable_values)
    nodes = list(raw.field_nodes)
    for name in path:
        nodes = reader.fields(nodes).get(name, [])
    return reader.jobs(nodes)
