"""The ends of a job without a result to upload, with the failure reasons of the server."""

from __future__ import annotations

import errno

from workers.agent.errors import AgentError
from workers.agent.sanitize import one_line
from workers.engines.contract import RunResult, RunSpec

# RunResult.kind -> failure reason and message. A command that fails is not here: that is a result.
FAILURES = {
    "not_found": ("command_not_found", "The command was not found: {command}"),
    "timeout": ("timed_out", "The command ran longer than {timeout:g} s and was stopped."),
    "out_of_memory": ("out_of_memory", "The command needed more than {memory:,} bytes of memory."),
    "too_many_processes": ("too_many_processes", "The command had more than {processes} processes at a time."),
    "disk_full": ("disk_full", "The command used more than {disk:,} bytes or {inodes:,} files of disk."),
    "worker_disk_full": ("worker_disk_full", "The worker's disk ran low, so the command was stopped."),
}


class JobFailed(AgentError):
    """The job ends as failed. `str()` is for the person who submitted it."""

    def __init__(self, reason: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.exit_code = exit_code


class JobReleased(AgentError):
    """Another worker shall run the job.

    `unable`: this machine cannot. `otherwise`: the failure reason when it is too late to release it.
    """

    def __init__(self, message: str, *, unable: bool, otherwise: str) -> None:
        super().__init__(message)
        self.unable = unable
        self.otherwise = otherwise


class JobStopped(AgentError):
    """A stop of the job was requested."""


def check_outcome(result: RunResult, spec: RunSpec) -> None:
    """Raise JobStopped or JobFailed unless this end is a result to upload."""
    if result.kind == "stopped":
        raise JobStopped
    if result.kind in FAILURES:
        reason, template = FAILURES[result.kind]
        message = template.format(
            command=spec.argv[0],
            timeout=spec.timeout_seconds,
            memory=spec.limits.memory_bytes,
            processes=spec.limits.processes,
            disk=spec.limits.disk_bytes,
            inodes=spec.limits.max_inodes,
        )
        raise JobFailed(reason, one_line(message), result.exit_code)


def classify_exception(error: Exception) -> JobFailed | JobReleased:
    """Return the end for an error of this worker, without the error's own text, which may hold anything.

    An error of the machine is not one of every machine. Too late for a release, the job fails.
    """
    if not isinstance(error, OSError):
        return JobFailed("worker_error", f"The worker failed: {type(error).__name__}.")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return JobReleased("The worker's disk is full.", unable=True, otherwise="worker_disk_full")
    return JobReleased(f"The worker failed: {type(error).__name__}.", unable=True, otherwise="worker_error")
