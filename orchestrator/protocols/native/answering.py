"""How one entry of a call for many is refused: as the call for one would have been."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from orchestrator.access.arrivals import arrival_of
from orchestrator.access.problems import problem, refused
from runtime_jobs.errors import Refused


def wrong(error: ValidationError, request: Request) -> Refused:
    """The same refusal as the core has them, to be kept beside its own."""
    found = refused(error, request)
    return Refused(found.code, found.detail, found.members)


def refusal(error: Exception, request: Request) -> dict[str, Any]:
    """Status and problem document."""
    found = refused(error, request)
    return {"status": found.status, "error": problem(found, arrival_of(request).request_id)}
