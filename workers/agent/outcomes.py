"""How a job may end without a result to upload, with the reasons of the closed list that the server knows."""

from __future__ import annotations

import errno

from workers.agent.errors import AgentError
from workers.agent.sanitize import one_line
from workers.engines.contract import RunResult, RunSpec

# Ended.kind -> reason, and what to tell people. A command that only fails is not here: that is a result.
FAILURES = {
    "not_found": ("command_not_found", "The command was not found: {command}"),
    "timeout": ("timed_out", "The command ran longer than {timeout:g} s and was stopped."),
    "out_of_memory": ("out_of_memory", "The command needed more than {memory:,} bytes of memory."),
    "too_many_processes": ("too_many_processes", "The command had more than {processes} processes at a time."),
    "disk_full": ("disk_full", "The command used more than {disk:,} bytes or {inodes:,} files of disk."),
    "worker_disk_full": ("worker_disk_full", "The worker's disk ran low, so the command was stopped."),
}


class JobFailed(AgentError):
    """The job ends here, as failed. `str()` is for whoever submitted it."""

    def __init__(self, reason: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.exit_code = exit_code


class JobReleased(AgentError):
    """Another worker shall have the job. `unable`: this machine is too weak for it. `otherwise`: the failure's reason
    when it is too late for that."""

    def __init__(self, message: str, *, unable: bool, otherwise: str) -> None:
        super().__init__(message)
        self.unable = unable
        self.otherwise = otherwise


class JobStopped(AgentError):
    """Somebody has asked to stop the job."""


def check_outcome(result: RunResult, spec: RunSpec) -> None:
    """Raise unless this end is a result to upload: Stopped or JobFailed."""
    if result.kind == "stopped":
        raise JobStopped
    if result.kind in FAILURES:
        reason, words = FAILURES[result.kind]
        said = words.format(
            command=spec.argv[0],
            timeout=spec.timeout_seconds,
            memory=spec.limits.memory_bytes,
            processes=spec.limits.processes,
            disk=spec.limits.disk_bytes,
            inodes=spec.limits.max_inodes,
        )
        raise JobFailed(reason, one_line(said), result.exit_code)


def classify_exception(error: Exception) -> JobFailed:
    """Name a failure of this worker without the error's own text, which may hold anything."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return JobFailed("worker_disk_full", "The worker's disk is full.")
    return JobFailed("worker_error", f"The worker failed: {type(error).__name__}.")
