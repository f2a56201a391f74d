"""`stella job submit|list|show|wait|logs|cancel`."""

import argparse
from typing import Any, Final
from uuid import uuid4

from orchestrator.cli.arguments import count, duration, json_object, pair, read_text, timestamp
from orchestrator.cli.commands import (
    PAGE,
    CommandContext,
    CommandGroup,
    add_job_id,
    add_timeout,
    job_id,
)
from orchestrator.cli.deadlines import Deadline
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.job_waiting import (
    exit_code_of_job,
    follow_job,
    has_ended,
    print_log,
    summary_of_end,
    wait_for_end,
)
from orchestrator.cli.pages import read_pages

_COLUMNS: Final = ("ID", "TYPE", "STATUS", "PRIORITY", "TENANT", "CREATED")


def register(group: CommandGroup) -> None:
    """Add the commands."""
    _add_submit(group)
    listing = group.add("list", list_jobs, "List jobs, newest first.")
    for option, member in _FILTERS.items():
        listing.add_argument(option, dest=member, metavar=option.removeprefix("--").upper())
    listing.add_argument("--replay-of", dest="replayOf", metavar="ID", type=job_id, help="replays of this job")
    listing.add_argument("--since", dest="createdAfter", metavar="TIME", type=timestamp, help="created after this time")
    listing.add_argument(
        "--until", dest="createdBefore", metavar="TIME", type=timestamp, help="created before this time"
    )
    listing.add_argument("--limit", metavar="N", type=count, default=50, help="at most so many (50)")
    add_job_id(group.add("show", show, "Show one job with its attempts, and why it waits or failed."))
    waiting = group.add("wait", wait, "Wait for the end of a job, and end with its exit code.")
    add_job_id(waiting)
    add_timeout(waiting)
    logs = group.add("logs", print_logs, "Write the log of a job.")
    add_job_id(logs)
    logs.add_argument("--follow", action="store_true", help="continue until the job ends, and end with its exit code")
    add_timeout(logs)
    canceling = group.add("cancel", cancel, "Cancel a job, or request its worker to stop it.")
    add_job_id(canceling)
    canceling.add_argument("--reason", default="", help="a sentence for its history")


# The filters of `GET /api/jobs` that need no conversion.
_FILTERS: Final = {
    "--tenant": "tenant",
    "--type": "jobType",
    "--status": "status",
    "--priority": "priority",
    "--correlation-id": "correlationId",
}


def _add_submit(group: CommandGroup) -> None:
    parser = group.add("submit", submit, "Submit a job.")
    parser.add_argument("--type", dest="job_type", metavar="TYPE", required=True, help="such as scan or pack-run")
    payload = parser.add_mutually_exclusive_group()
    payload.add_argument("--payload", metavar="JSON", help="payload, a JSON object ({})")
    payload.add_argument("--payload-file", metavar="FILE", help="file with the payload; - is standard input")
    parser.add_argument("--tenant", help="tenant (that of the token)")
    parser.add_argument("--project", help="project (the default one of the tenant)")
    parser.add_argument("--priority", help="low, normal, high or emergency (that of the plan)")
    parser.add_argument(
        "--depends-on", metavar="ID", type=job_id, action="append", default=[], help="a job that must complete first"
    )
    parser.add_argument(
        "--cursor", metavar="NAME=VALUE", type=pair, action="append", default=[], help="from where a feed is read"
    )
    parser.add_argument("--job-timeout", metavar="TIME", type=duration, help="time limit of the job itself")
    parser.add_argument("--correlation-id", metavar="TEXT", help="id of the trace to which the job belongs")
    parser.add_argument("--requested-by", metavar="TEXT", help="for whom the job is requested")
    parser.add_argument("--idempotency-key", metavar="KEY", help="the same key returns the same job (a new one)")
    parser.add_argument("--wait", action="store_true", help="wait for the end, and end with the exit code of the job")
    parser.add_argument("--follow", action="store_true", help="as --wait, and write the log meanwhile")
    add_timeout(parser)


def submit(context: CommandContext) -> int:
    """Submit a job. The key makes it safe to repeat a request of which no response has arrived."""
    options = context.options
    waits = options.wait or options.follow
    if options.timeout is not None and not waits:
        raise UsageError("--timeout needs --wait or --follow. The limit of the job itself is --job-timeout.")
    request, client = _request(options), context.client
    client.deadline = Deadline(None)  # of a submit that is broken off, the id would not be known
    job = client.call(
        "POST",
        "/api/jobs",
        request,
        headers={"Idempotency-Key": options.idempotency_key or str(uuid4())},
        is_repeatable=True,
    ).body
    client.deadline = context.deadline
    client.deadline.begin()
    printer = context.printer
    if not waits:
        printer.result(job, job["jobId"])
        return ExitCode.OK
    if options.follow or printer.is_json:  # standard output is for the log, or for the values that programs read
        printer.note(job["jobId"])
    else:
        printer.line(job["jobId"])
    return _finish(context, job["jobId"], follows=options.follow)


def _finish(context: CommandContext, found_id: str, *, follows: bool) -> int:
    """Wait for the end of a job, with its log or without, and write the end. Returns the exit code of the job."""
    job = follow_job(context, found_id) if follows else wait_for_end(context.client, found_id)
    if context.printer.is_json:
        context.printer.value(job)
    else:
        context.printer.note(summary_of_end(job))
    return exit_code_of_job(job)


def _request(options: argparse.Namespace) -> dict[str, Any]:
    """Return the body of the submit, without what is not given: the server has the defaults."""
    if options.payload_file is not None:
        payload = json_object(read_text(options.payload_file), options.payload_file)
    else:
        payload = json_object(options.payload or "{}", "--payload")
    given = {
        "jobType": options.job_type,
        "payload": payload,
        "tenant": options.tenant,
        "project": options.project,
        "priority": options.priority,
        "dependencies": options.depends_on or None,
        "cursors": dict(options.cursor) or None,
        "timeoutSeconds": None if options.job_timeout is None else max(1, round(options.job_timeout)),
        "correlationId": options.correlation_id,
        "requestedBy": options.requested_by,
    }
    return {name: value for name, value in given.items() if value is not None}


def list_jobs(context: CommandContext) -> int:
    """List jobs by as many pages as needed."""
    options, printer = context.options, context.printer
    names = (*_FILTERS.values(), "replayOf", "createdAfter", "createdBefore")
    filters = {name: getattr(options, name) for name in names} | {"limit": min(options.limit, PAGE)}
    jobs = read_pages(context.client, "/api/jobs", filters, options.limit)
    if printer.is_json:
        printer.value(jobs)
    else:
        members = ("jobId", "jobType", "status", "priority", "tenant", "createdAt")
        printer.table(_COLUMNS, [[job[member] for member in members] for job in jobs])
    return ExitCode.OK


def show(context: CommandContext) -> int:
    """Show one job."""
    job, printer = context.client.get(f"/api/jobs/{context.options.job_id}").body, context.printer
    if printer.is_json:
        printer.value(job)
        return ExitCode.OK
    reason, failure = job["pendingReason"], job["failure"]
    printer.fields(
        [
            *((name, job[name]) for name in ("jobId", "jobType", "tenant", "project", "status", "priority")),
            ("waits", reason and reason["message"]),
            ("failure", failure and f"{failure['reason']} {failure['message']}".strip()),
            ("exit code", (job["result"] or {}).get("exitCode")),
            *((name, job[name]) for name in ("payloadDigest", "correlationId", "replayOf", "requestedBy")),
            *((name, job[name]) for name in ("createdAt", "startedAt", "completedAt")),
        ]
    )
    for attempt in job["attempts"]:
        printer.line(f"attempt {attempt['attempt']}: {attempt['status']}, worker {attempt['workerId'] or '-'}")
    return ExitCode.OK


def wait(context: CommandContext) -> int:
    """Wait for the end of a job."""
    return _finish(context, context.options.job_id, follows=False)


def print_logs(context: CommandContext) -> int:
    """Write the log of a job that there is, or follow it."""
    options = context.options
    if options.follow:
        return _finish(context, options.job_id, follows=True)
    job = context.client.get(f"/api/jobs/{options.job_id}").body
    print_log(context, job["jobId"], is_complete=has_ended(job))
    return ExitCode.OK


def cancel(context: CommandContext) -> int:
    """Cancel a job. A repeated cancel changes nothing."""
    options, printer = context.options, context.printer
    path = f"/api/jobs/{options.job_id}/cancel"
    reply = context.client.call("POST", path, {"reason": options.reason}, is_repeatable=True)
    printer.result(reply.body, "requested" if reply.status == 202 else reply.body["status"])
    return ExitCode.OK
