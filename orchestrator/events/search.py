"""Searches the feed for events of some tenants and types. A search reads a bounded number of events of all tenants."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from orchestrator.events.pages import Place, StoredEvent, read_page

ROWS_PER_PAGE: Final = 1_000
MAX_SCANNED: Final = 20_000  # of all tenants: there is no index by tenant, which each new event would pay for


class FoundEvents(NamedTuple):
    """The result of a search.

    Attributes:
        events: The events in order.
        place: The place up to which the search has come.
        is_complete: There are no later events yet.
    """

    events: list[StoredEvent]
    place: Place
    is_complete: bool


def find_events(
    after: Place, *, organizations: Iterable[str] | None, matches: Callable[[StoredEvent], bool], limit: int
) -> FoundEvents:
    """Return the next events after a place. A search may find fewer than there are: it continues at its `place`.

    Args:
        after: The place.
        organizations: Only events of these; None: of all, and of the whole installation.
        matches: Whether an event is wanted.
        limit: The largest number of events.
    """
    slugs = None if organizations is None else sorted(organizations)
    found: list[StoredEvent] = []
    scanned = 0
    while True:
        page = read_page(after, organizations=slugs, rows=ROWS_PER_PAGE)
        for event in filter(matches, page.events):
            found.append(event)
            if len(found) == limit:
                return FoundEvents(found, event.place, is_complete=False)
        after, scanned = page.place, scanned + page.scanned
        if page.is_complete or scanned >= MAX_SCANNED:
            return FoundEvents(found, after, page.is_complete)
