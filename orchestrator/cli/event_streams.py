"""Reads Server-Sent Events, and connects again with the id of the last one when the connection is lost."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.cli.client import CONNECTION_LOST, READ_SECONDS, REPEATED_STATUSES, StellaClient
from orchestrator.cli.deadlines import Patience
from orchestrator.cli.errors import ApiRefusal, CommandFailed, ExitCode, ServerUnavailable

MAX_EVENT_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class StreamEvent:
    """One event. `id` is the place after which a stream continues, or an empty text."""

    id: str
    name: str
    content: Any


def follow_events(
    client: StellaClient,
    path: str,
    *,
    query: Mapping[str, Any] | None = None,
    idle_seconds: float | None = None,
    on_open: Callable[[], None] = lambda: None,
) -> Generator[StreamEvent, None, None]:
    """Yield the events of a stream for ever. A connection that is lost or ended by the server is opened again.

    Args:
        client: The client.
        path: The path of the stream.
        query: Parameters; those that are None are left out.
        idle_seconds: Stop after this silence instead of waiting for more.
        on_open: Is called whenever a connection was opened, before its first event.

    Raises:
        ApiRefusal: The server has refused the stream.
        ServerUnavailable: The server has not answered for a minute.
        TimeUp: The deadline has come.
    """
    deadline, patience, last_id = client.deadline, Patience(client.deadline), ""
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        is_open = False
        try:
            seconds = deadline.left(idle_seconds or READ_SECONDS)
            with client.stream(path, query=query, headers=headers, read_seconds=seconds) as response:
                is_open = True
                on_open()
                for event in parse_events(response.iter_content(None)):
                    patience.answered()
                    last_id = event.id or last_id
                    if event.name:
                        yield event
                    deadline.left(READ_SECONDS)
        except CONNECTION_LOST as error:
            deadline.left(READ_SECONDS)
            if is_open and idle_seconds is not None:
                return
            patience.endure(client.away(error))
        except ServerUnavailable as error:
            patience.endure(error)
        except ApiRefusal as refusal:
            if refusal.status not in REPEATED_STATUSES:
                raise
            patience.endure(refusal)
        else:
            patience.endure(ServerUnavailable(f"{client.url} ends the stream at once."))


def parse_events(parts: Iterable[bytes]) -> Iterator[StreamEvent]:
    """Yield the events in the parts of a response. One without a name of its own is a `message`.

    An event without data has an empty name: only its id counts.

    Raises:
        CommandFailed: An event is no JSON or too large, so the response is none of a stream of this API.
    """
    fields: dict[str, str] = {}
    for line in _lines(parts):
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data" and name in fields:
                value = f"{fields[name]}\n{value}"
            fields[name] = value
            continue
        if "data" in fields:
            yield StreamEvent(fields.get("id", ""), fields.get("event", "message"), _content(fields["data"]))
        elif "id" in fields:
            yield StreamEvent(fields["id"], "", None)
        fields.clear()


def _lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Yield complete lines. What follows the last line end is no line yet, and no event at the end of a response."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(rest) > MAX_EVENT_BYTES:
            raise _no_stream("An event of the stream is too large.")


def _content(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise _no_stream("An event of the stream is no JSON. Is it the right server?") from None


def _no_stream(message: str) -> CommandFailed:
    return CommandFailed(ExitCode.UNAVAILABLE, message, code="no_stream")
