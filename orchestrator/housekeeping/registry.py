"""Declares the kinds of housekeeping tasks.

The decorator `task` declares a function that executes tasks of one kind, given their subjects.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

Run = Callable[[str], None]
Period = Callable[[], timedelta]


class PermanentFailure(Exception):
    """A task cannot succeed, however often it is repeated. Its row keeps this text until it is requested again."""


class SubjectGone(Exception):
    """The subject of a task does not exist any more. Its row is deleted."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of tasks.

    Attributes:
        name: The name in the rows, at most 63 characters.
        run: Executes a task, given its subject. What it raises is recorded, and the task is repeated after a pause.
        every: The time between a success and the next execution; None: a task of this kind occurs once.
        is_standing: Whether there is always one task of this kind, without a subject.
    """

    name: str
    run: Run
    every: Period | None = None
    is_standing: bool = False


KINDS: dict[str, TaskKind] = {}


def task(name: str, *, every: Period | None = None, is_standing: bool = False) -> Callable[[Run], Run]:
    """Declare a function as the executor of a kind of tasks. `processes.housekeeping_catalogue` names its module.

    The function is called in a thread of its own, without a transaction. It must permit to be called twice for one
    request, and end by itself: a limit of its own for each thing that it waits for.

    Args:
        name: The name of the kind.
        every: Returns the time between a success and the next execution; None: once for each request.
        is_standing: Whether every process creates the one task of this kind. It needs `every`.

    Raises:
        ValueError: The name is taken, or a standing task has no period.
    """

    def declare(run: Run) -> Run:
        if name in KINDS or (is_standing and every is None):
            raise ValueError(f"task {name}: the name is taken, or a standing task has no period")
        KINDS[name] = TaskKind(name, run, every, is_standing)
        return run

    return declare
