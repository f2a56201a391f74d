"""Excludes what a server process loads at its start from garbage collection."""

import gc
from typing import Final

from django.urls import get_resolver

# Without the frozen objects the others are few: each burst of connections grew them by the quarter that starts a full
# collection, which stopped all threads for 30 to 80 ms, three times in a burst. With these numbers 10,000 new objects
# start the first generation (2 to 5 ms), 100,000 the second, and 2,000,000 a full one.
COLLECTOR_THRESHOLDS: Final = (10_000, 10, 20)


def freeze_startup_objects() -> None:
    """Load all views, then move all objects out of the garbage collector's generations.

    Full collections of these objects stopped the process for 50 to 80 ms each, and took an eighth of the time of
    calls with many entries. While the views are loaded nothing becomes garbage, and collections would take a sixth of
    the time.
    """
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.disable()
    assert get_resolver().url_patterns  # noqa: S101 - reading them loads the views
    gc.enable()
    gc.collect()
    gc.freeze()
