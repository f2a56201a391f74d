"""Responses as bytes, for clients that are refused before the server has parsed a request of theirs."""

import json
from functools import lru_cache

from django.conf import settings
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from orchestrator.http.asgi.connections import ConnectionTable
from orchestrator.http.errors.problems import MEDIA_TYPE, ApiError, problem
from runtime_jobs.identifiers import new_id

_ANY_ID = new_id("req")  # replaced in each response by an id of the same length


def raw_response(refusal: ApiError) -> bytes:
    """Return a problem document with its status line and headers, after which the connection is closed."""
    return _response(refusal, new_id("req"))


def connection_refusal(reason: str, table: ConnectionTable) -> bytes:
    """Return the response to a connection that is refused before its first request.

    A flood of connections asks for it thousands of times in a second, so that only the id is made anew.

    Args:
        reason: `address_limit` or `connection_limit`.
        table: The limits.
    """
    return _connection_refusal(reason, table.max_connections).replace(_ANY_ID.encode(), new_id("req").encode())


@lru_cache
def _connection_refusal(reason: str, max_connections: int) -> bytes:
    if reason == "address_limit":
        detail = f"Your address may have {settings.MAX_CONNECTIONS_PER_ADDRESS} connections open at a time."
        refusal = ApiError(429, "too_many_connections", detail, headers={"Retry-After": "1"})
    else:
        detail = f"All {max_connections} connections that this process may have open are in use."
        refusal = ApiError(503, "overloaded", detail, headers={"Retry-After": "1"})
    return _response(refusal, _ANY_ID)


def _response(refusal: ApiError, request_id: str) -> bytes:
    body = json.dumps(problem(refusal, request_id)).encode()
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "x-request-id": request_id,
        "connection": "close",
        **refusal.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[refusal.status] + lines.encode("latin-1") + b"\r\n" + body
