"""Matches events with the triggers of workflows."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime_jobs.workflows.document import WorkflowTriggers
from runtime_jobs.workflows.patterns import PatternList

BRANCH, TAG = "refs/heads/", "refs/tags/"


@dataclass(frozen=True)
class TriggerEvent:
    """An event that may start runs.

    Attributes:
        name: `push`, `pull_request`, `schedule` or `workflow_dispatch`.
        ref: The pushed ref, such as `refs/heads/main`.
        action: What happened to the pull request, such as `opened`.
        base_branch: The name of the branch that the pull request is for.
        changed_paths: The paths that the event changes. None: not known, so no path filter excludes the event.
        cron: The schedule that is due.
    """

    name: str
    ref: str = ""
    action: str = ""
    base_branch: str = ""
    changed_paths: Sequence[str] | None = ()
    cron: str = ""


def is_triggered(triggers: WorkflowTriggers, event: TriggerEvent) -> bool:
    """Return whether an event starts a run of a workflow with these triggers."""
    match event.name:
        case "push":
            return _is_pushed(triggers, event)
        case "pull_request":
            pull_request = triggers.pull_request
            if pull_request is None or event.action not in pull_request.types:
                return False
            return _is_included(pull_request.branches, event.base_branch) and _changes(pull_request.paths, event)
        case "schedule":
            return any(schedule.source == event.cron for schedule in triggers.schedules)
        case "workflow_dispatch":
            return triggers.dispatch is not None
        case _:
            return False


def _is_pushed(triggers: WorkflowTriggers, event: TriggerEvent) -> bool:
    """A filter of branches alone excludes all tags, and a filter of tags alone all branches."""
    push = triggers.push
    if push is None:
        return False
    for prefix, own, other in ((BRANCH, push.branches, push.tags), (TAG, push.tags, push.branches)):
        if event.ref.startswith(prefix):
            is_included = own.includes(event.ref.removeprefix(prefix)) if own else not other
            return is_included and _changes(push.paths, event)
    return False


def _is_included(patterns: PatternList, name: str) -> bool:
    return not patterns or patterns.includes(name)


def _changes(paths: PatternList, event: TriggerEvent) -> bool:
    return event.changed_paths is None or paths.includes_any(event.changed_paths)
