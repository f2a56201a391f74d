"""Reads lists that the server returns by pages."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from orchestrator.cli.client import StellaClient


def read_pages(client: StellaClient, path: str, query: Mapping[str, Any], limit: int | None) -> list[dict[str, Any]]:
    """Return the rows of a list with cursors.

    The address of the next page has the name by which the server knows itself, perhaps behind a proxy. Only its cursor
    is used.

    Args:
        client: The client.
        path: The path of the list.
        query: Filters; those that are None are left out.
        limit: The most rows, or None for all.
    """
    rows: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get(path, {**query, "cursor": cursor}).body
        rows += page["results"]
        if page["next"] is None or (limit is not None and len(rows) >= limit):
            return rows[:limit]
        cursor = parse_qs(urlsplit(page["next"]).query)["cursor"][0]
