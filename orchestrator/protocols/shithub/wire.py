"""Values that several responses of this protocol have."""

from datetime import UTC, datetime
from typing import Any

from orchestrator.job_tokens.claims import JobToken, sign


def format_seconds(timestamp: datetime) -> str:
    """Return a timestamp as RFC 3339 in UTC with whole seconds."""
    return f"{timestamp.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def next_token_members(token: JobToken) -> dict[str, Any]:
    """Return the members of a response that hand out the next token of a chain."""
    return {"next_token": sign(token), "next_token_expires_at": format_seconds(token.expires_at)}
