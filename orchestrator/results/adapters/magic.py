"""Reads results of any known format: the first adapter that accepts them counts."""

from collections.abc import Sequence

import orjson

from orchestrator.results.adapters.base import Adapter, Average, Results

_NOT_JSON = object()


def parse_with(adapters: Sequence[Adapter], text: str, average: Average | None) -> Results | None:
    """Return the results that the first fitting adapter reads. The text is parsed as JSON at most once.

    Args:
        adapters: The adapters in the order in which they are attempted. One without the average is left out.
        text: The results.
        average: The requested average. None: the mean, or the only average of the adapter.

    Returns:
        None if no adapter accepts the text.
    """
    document: object = None
    for adapter in adapters:
        if average is not None and average not in adapter.averages:
            continue
        chosen = average or adapter.averages[0]
        if not adapter.is_json:
            found = adapter.parse(text, chosen)
        else:
            document = _load(text) if document is None else document
            found = None if document is _NOT_JSON else adapter.parse(document, chosen)
        if found is not None:
            return found
    return None


def _load(text: str) -> object:
    """Return the JSON document, or a mark if the text is none. JSON has neither NaN nor Infinity."""
    try:
        document = orjson.loads(text)
    except ValueError:
        return _NOT_JSON
    return _NOT_JSON if document is None else document
