"""`stella events`: the events of the tenants that the token may see, as a list or as they happen."""

from contextlib import closing
from typing import Any

from orchestrator.cli.arguments import count
from orchestrator.cli.commands import PAGE, CommandContext, add_command, add_timeout, job_id
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.event_streams import StreamEvent, follow_events


def register(parsers: Any) -> None:
    """Add the command."""
    parser = add_command(parsers, "events", events, "List events, the oldest first, or follow them as they happen.")
    parser.add_argument("--tenant", help="of this tenant (of all that the token may see)")
    parser.add_argument("--type", dest="job_type", metavar="TYPE", help="of these job types, separated by commas")
    parser.add_argument("--event-type", metavar="TYPE", help="of these types, such as job.failed, separated by commas")
    parser.add_argument("--job-id", metavar="ID", type=job_id, help="of this job")
    parser.add_argument("--after", metavar="PLACE", help="continue after this place (from the oldest, or from now)")
    parser.add_argument("--limit", metavar="N", type=count, help="at most so many (50; with --follow no limit)")
    parser.add_argument("--follow", action="store_true", help="continue until Ctrl-C, or until --limit or --timeout")
    add_timeout(parser)


def events(context: CommandContext) -> int:
    """List events, or follow them."""
    options = context.options
    query = {
        "tenant": options.tenant,
        "jobType": options.job_type,
        "eventType": options.event_type,
        "jobId": options.job_id,
        "after": options.after,
    }
    if options.follow:
        return _follow(context, query)
    if options.timeout is not None:
        raise UsageError("--timeout needs --follow.")
    return _list(context, query)


def _list(context: CommandContext, query: dict[str, Any]) -> int:
    """Write a list, and the place after which the next one continues.

    A page reads a bounded part of the feed. So one without events may have a next page all the same.
    """
    printer, limit = context.printer, context.options.limit or 50
    found: list[dict[str, Any]] = []
    while True:
        page = context.client.get("/api/events", query | {"limit": min(limit - len(found), PAGE)}).body
        found += page["results"]
        if page["next"] is None or len(found) >= limit:
            break
        query = query | {"after": page["place"]}
    if printer.is_json:
        printer.value({"results": found, "place": page["place"], "hasMore": page["next"] is not None})
        return ExitCode.OK
    for envelope in found:
        printer.line(line_of(envelope))
    printer.note(f"place: {page['place']}")
    return ExitCode.OK


def _follow(context: CommandContext, query: dict[str, Any]) -> int:
    written, limit = 0, context.options.limit
    stream = follow_events(context.client, "/api/dashboard/events", query=query)
    with closing(stream):
        for event in stream:
            written += _write(context, event)
            if limit is not None and written >= limit:
                break
    return ExitCode.OK


def _write(context: CommandContext, event: StreamEvent) -> int:
    """Write an event of the stream. Returns how many envelopes that were."""
    if event.name == "message":
        context.printer.result(event.content, line_of(event.content))
        return 1
    if event.name == "gap":
        context.printer.note(f"events are missing ({event.content['reason']}): {event.content['events']}")
    return 0


def line_of(envelope: dict[str, Any]) -> str:
    """Return one line about an event."""
    subject = f"{envelope['jobType']} {envelope['jobId']}" if envelope["jobId"] else "-"
    status = envelope["payload"].get("status")
    return f"{envelope['timestamp']}  {envelope['eventType']:<20}  {subject}" + (f"  {status}" if status else "")
