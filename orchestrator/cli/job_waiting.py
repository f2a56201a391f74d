"""Waits for the end of a job, with its log or without, and converts the end to an exit code."""

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Any, Final

from orchestrator.cli.client import REPEATED_STATUSES, StellaClient
from orchestrator.cli.commands import CommandContext
from orchestrator.cli.deadlines import Patience
from orchestrator.cli.errors import ApiRefusal, ExitCode, ServerUnavailable
from orchestrator.cli.event_streams import StreamEvent, follow_events

ENDED: Final = frozenset({"completed", "failed", "incident", "canceled"})
IDLE_SECONDS: Final = 2.0  # of silence, after which `logs` without `--follow` ends


def has_ended(job: dict[str, Any]) -> bool:
    """Return whether a job has ended. A failed one that is retried has the status of its newest attempt."""
    return job["status"] in ENDED


def exit_code_of_job(job: dict[str, Any]) -> int:
    """Return the exit code for a job that has ended: its own, if a process can have it."""
    if job["status"] == "canceled":
        return ExitCode.INTERRUPTED
    code = (job.get("result") or {}).get("exitCode")
    if job["status"] == "completed":
        return ExitCode.OK if not code else _as_exit_code(code)
    return _as_exit_code(code)


def _as_exit_code(code: object) -> int:
    return code if isinstance(code, int) and 0 < code < 256 else ExitCode.FAILED


def summary_of_end(job: dict[str, Any]) -> str:
    """Return one line about the end of a job."""
    code, failure = (job.get("result") or {}).get("exitCode"), job.get("failure")
    words = [f"{job['jobId']} {job['status']}"]
    if code is not None:
        words.append(f"exit code {code}")
    if failure is not None:
        words.append(": ".join(filter(None, (failure["reason"], failure["message"]))))
    return ", ".join(words)


def wait_for_end(client: StellaClient, job_id: str) -> dict[str, Any]:
    """Return the job once it has ended. A server that is away meanwhile is asked again for a minute.

    Raises:
        ApiRefusal: There is no such job, or the caller may not see it.
        ServerUnavailable: The server has not answered for a minute.
        TimeUp: The deadline has come.
    """
    patience = Patience(client.deadline)
    while True:
        try:
            job: dict[str, Any] = client.get(f"/api/jobs/{job_id}").body
        except (ServerUnavailable, ApiRefusal) as error:
            if isinstance(error, ApiRefusal) and error.status not in REPEATED_STATUSES:
                raise
            patience.endure(error)
            continue
        if has_ended(job):
            return job
        patience.answered()
        patience.wait()


class AttemptChanged(Exception):
    """The job was retried before its log was opened."""


def follow_job(context: CommandContext, job_id: str) -> dict[str, Any]:
    """Write the log of a job while it grows, of all further attempts, and return the job once it has ended.

    The server sends the log of the newest attempt. So the attempt is read before and after a stream is opened: if it is
    the same, the log is of that attempt.

    Raises:
        ApiRefusal: There is no such job, or the caller may not see it.
        ServerUnavailable: The server has not answered for a minute.
        TimeUp: The deadline has come.
    """
    path = f"/api/jobs/{job_id}"
    attempt = context.client.get(path).body["attempt"]

    def require_attempt() -> None:
        if context.client.get(path).body["attempt"] != attempt:
            raise AttemptChanged

    while True:
        with suppress(AttemptChanged), closing(_log_events(context, job_id, on_open=require_attempt)) as events:
            for event in events:
                write_log_event(context, event)
        job: dict[str, Any] = context.client.get(path).body
        if has_ended(job) and job["attempt"] == attempt:
            return job
        attempt = job["attempt"]


def print_log(context: CommandContext, job_id: str, *, is_complete: bool) -> None:
    """Write the log that there is.

    Args:
        context: The context of the command.
        job_id: The job.
        is_complete: The job has ended, and so the log has an end. Otherwise silence is the end.
    """
    idle_seconds = None if is_complete else IDLE_SECONDS
    with closing(_log_events(context, job_id, idle_seconds=idle_seconds)) as events:
        for event in events:
            write_log_event(context, event)


def _log_events(
    context: CommandContext,
    job_id: str,
    *,
    idle_seconds: float | None = None,
    on_open: Callable[[], None] = lambda: None,
) -> Generator[StreamEvent, None, None]:
    """Yield the events of the log of the newest attempt, up to its end."""
    path = f"/runs/{job_id}/logs"
    with closing(follow_events(context.client, path, idle_seconds=idle_seconds, on_open=on_open)) as events:
        for event in events:
            yield event
            if event.name == "end":
                return


def write_log_event(context: CommandContext, event: StreamEvent) -> None:
    """Write output to standard output. Changes of steps are notes, or lines of their own for programs."""
    printer = context.printer
    if printer.is_json:
        printer.value({"event": event.name, **event.content})
    elif event.name == "chunk":
        printer.log(event.content["text"])
    elif event.name == "step":
        step = event.content
        printer.note(f"step {step['step']} {step['name'] or ''}: {step['conclusion'] or step['status']}")
