"""From what was seen to how it ended: one pure function."""

from __future__ import annotations

from dataclasses import dataclass

from workers.engines.limits.cgroups import CgroupUsage

NOTHING = CgroupUsage()


@dataclass(frozen=True)
class Observation:
    """Everything that the end is judged by.

    `reason`: why the worker ended it, if it did. `exit_code` and `killed_by`: of the command itself, from the trace, or
    from the sandbox when the trace was cut short. `failure`: the errno for which the command could not be started.
    """

    reason: str | None = None
    exit_code: int | None = None
    killed_by: str | None = None
    failure: int | None = None
    usage: CgroupUsage = NOTHING


def classify_exit(seen: Observation) -> tuple[str, int | None, str | None]:
    """Kind, exit code and signal of `Ended`."""
    failed = seen.exit_code != 0
    if seen.reason:
        kind = seen.reason
    elif seen.failure is not None:
        return "not_found", None, None
    elif seen.usage.out_of_memory_kills and failed:
        kind = "out_of_memory"
    elif seen.usage.refused_forks and failed:
        kind = "too_many_processes"
    elif seen.killed_by == "SIGXFSZ":
        kind = "disk_full"
    elif seen.exit_code is not None:
        kind = "exited"
    else:
        kind = "signaled"
    name = seen.killed_by or ("SIGKILL" if kind == "signaled" else None)
    return kind, seen.exit_code, name
