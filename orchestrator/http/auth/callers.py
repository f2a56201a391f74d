"""The caller of a request whose permission was checked."""

from typing import Any

from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal
from orchestrator.http.api.calls import AuthenticatedRequest
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
