"""Classifies the end of a run from what was observed."""

from __future__ import annotations

from dataclasses import dataclass

from workers.engines.limits.cgroups import CgroupUsage

NOTHING = CgroupUsage()


@dataclass(frozen=True)
class Observation:
    """The facts that decide the kind of the end.

    `reason`: why the worker ended the run, if it did. `exit_code` and `killed_by`: of the command itself, from the
    trace, or from the sandbox when the trace was cut short. `failure`: the errno for which the command could not be
    started.
    """

    reason: str | None = None
    exit_code: int | None = None
    killed_by: str | None = None
    failure: int | None = None
    usage: CgroupUsage = NOTHING


def classify_exit(observed: Observation) -> tuple[str, int | None, str | None]:
    """Return kind, exit code and signal for `RunResult`."""
    failed = observed.exit_code != 0
    if observed.reason:
        kind = observed.reason
    elif observed.failure is not None:
        return "not_found", None, None
    elif observed.usage.out_of_memory_kills and failed:
        kind = "out_of_memory"
    elif observed.usage.refused_forks and failed:
        kind = "too_many_processes"
    elif observed.killed_by == "SIGXFSZ":
        kind = "disk_full"
    elif observed.exit_code is not None:
        kind = "exited"
    else:
        kind = "signaled"
    name = observed.killed_by or ("SIGKILL" if kind == "signaled" else None)
    return kind, observed.exit_code, name
