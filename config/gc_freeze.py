"""Excludes what a process loads at its start from garbage collection.

While code is loaded hardly anything becomes garbage: 5,000 of 350,000 objects of a web process. Collecting those took a
third of the start, so the collector is off until `freeze_startup_objects` starts it.
"""

import gc
from typing import Final

# Without the frozen objects the others are few: each burst of connections grew them by the quarter that starts a full
# collection, which stopped all threads for 30 to 80 ms, three times in a burst. With these numbers 10,000 new objects
# start the first generation (2 to 5 ms), 100,000 the second, and 2,000,000 a full one.
COLLECTOR_THRESHOLDS: Final = (10_000, 10, 20)


def freeze_startup_objects() -> None:
    """Move all objects out of the garbage collector's generations, and start it.

    Full collections of the objects of a web process stopped it for 50 to 80 ms each, and took an eighth of the time of
    calls with many entries.
    """
    gc.freeze()
    gc.enable()


def freeze_server() -> None:
    """Load all views of a web process, then exclude its objects. The thresholds are those of servers."""
    from django.urls import get_resolver  # noqa: PLC0415 - not for commands without views

    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    assert get_resolver().url_patterns  # noqa: S101 - reading them loads the views
    freeze_startup_objects()
