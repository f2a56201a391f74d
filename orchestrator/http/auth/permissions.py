"""Permissions of views. Every view names one; a view without one refuses all requests."""

from typing import Any

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import BasePermission

from orchestrator.core.principals import INSTALLATION, ClientPrincipal, WorkerPrincipal
from orchestrator.http.api.calls import AuthenticatedRequest
from orchestrator.http.errors.problems import ApiError
from runtime_jobs.errors import NotFound, OperatorOnly

NOT_FOR_WORKERS = "Workers may not call this operation. Use an API token, which begins with rto_api_."


class DenyAll(BasePermission):
    """Refuses every request. This is the default of views."""

    def has_permission(self, _request: AuthenticatedRequest, _view: Any) -> bool:
        return False


class IsWorker(BasePermission):
    """Admits workers."""

    def has_permission(self, request: AuthenticatedRequest, _view: Any) -> bool:
        if not caller_of(request).is_worker:
            raise ApiError(
                403,
                "wrong_principal",
                "Only workers may call this operation. Use a token that begins with rto_worker_.",
            )
        return True


class IsInstallationOperator(BasePermission):
    """Admits operators to what concerns every tenant. For a tenant's program the resource does not exist."""

    def has_permission(self, request: AuthenticatedRequest, _view: Any) -> bool:
        caller = caller_of(request)
        if caller.is_worker:
            raise ApiError(403, "wrong_principal", NOT_FOR_WORKERS)
        require_installation(caller)
        return True


def require_installation(caller: ClientPrincipal | WorkerPrincipal) -> None:
    """Raise NotFound for callers other than operators, OperatorOnly for operators without the permission."""
    if not (isinstance(caller, ClientPrincipal) and caller.is_operator):
        raise NotFound("The resource does not exist, or you may not see it.")
    if INSTALLATION not in caller.scopes:
        raise OperatorOnly("The permission to change pools is required (workers.change_pool).")


class HasScope(BasePermission):
    """Admits clients that have the scope, and workers if `allow_workers` is true.

    A member with different roles sees in this request only the organizations in which the role has the scope.
    Views return an instance from `get_permissions`.
    """

    def __init__(self, scope: str, *, allow_workers: bool = False) -> None:
        self.scope = scope
        self.allow_workers = allow_workers

    def has_permission(self, request: AuthenticatedRequest, _view: Any) -> bool:
        caller = caller_of(request)
        if isinstance(caller, WorkerPrincipal):
            if self.allow_workers:
                return True
            raise ApiError(403, "wrong_principal", NOT_FOR_WORKERS)
        if self.scope not in caller.scopes:
            detail = f"The scope {self.scope} is required, and this token or session does not have it."
            raise ApiError(403, "insufficient_scope", detail, scope=self.scope)
        if isinstance(caller, ClientPrincipal) and caller.scopes_by_organization is not None:
            request.user = caller.limited_to(self.scope)
        return True


def caller_of(request: AuthenticatedRequest) -> ClientPrincipal | WorkerPrincipal:
    """Return the authenticated caller. Raises NotAuthenticated without one."""
    caller: Any = request.user
    if not isinstance(caller, ClientPrincipal | WorkerPrincipal):
        raise NotAuthenticated
    return caller
