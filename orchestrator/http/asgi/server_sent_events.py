"""The parts of an event stream that are no events: how soon a client reconnects, and signs of life."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

RETRY: Final = b"retry: 3000\n\n"  # milliseconds until a client reconnects after the stream was cut off
RETRY_SOON: Final = b"retry: 1000\n\n"  # the last part of a stream of a process that ends: another one answers
PING: Final = b": ping\n\n"
PING_SECONDS: Final = 15.0  # without an event; proxies end a connection that is silent for a minute


async def with_pings(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield rendered events, and a comment in place of empty bytes. The first line names the time to reconnect.

    A client that reads too slowly is disconnected by `asgi.streams`, and continues after its last event.

    Args:
        events: Events, and empty bytes every PING_SECONDS while there are none.
    """
    async with aclosing(events):
        yield RETRY
        async for batch in events:
            yield batch or PING
