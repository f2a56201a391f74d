"""The caller of a request whose permission was checked."""

from typing import Any

from rest_framework.request import Request

from orchestrator.core.cause import Cause
from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal
from orchestrator.http.api.calls import AuthenticatedRequest
from orchestrator.http.client_ip import client_address
from workers.models import Worker


def client_of(request: AuthenticatedRequest) -> ClientPrincipal:
    """Return the caller of a view whose permission admits only clients."""
    caller: Any = request.user
    assert isinstance(caller, ClientPrincipal)  # noqa: S101 a view without its permission is a bug
    return caller


def worker_of(request: AuthenticatedRequest) -> Worker:
    """Return the caller of a view whose permission is `IsWorker`."""
    caller: Any = request.user
    assert isinstance(caller, WorkerPrincipal)  # noqa: S101 a view without its permission is a bug
    return caller.worker


def cause_of(request: Request, reason: str = "") -> Cause:
    """Return the cause of what a client asks for."""
    return Cause(client_of(request).actor, reason, client_address(request))
