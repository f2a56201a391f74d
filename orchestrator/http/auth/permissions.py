"""Permissions of views. Every view names one; a view without one refuses all requests."""

from typing import Any

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from orchestrator.http.auth.principals import INSTALLATION, ClientPrincipal, WorkerPrincipal
from orchestrator.http.errors.problems import ApiError
from runtime_jobs.errors import NotFound, OperatorOnly


class DenyAll(BasePermission):
    """Refuses every request. This is the default of views."""

    def has_permission(self, _request: Request, _view: Any) -> bool:
        return False


class IsWorker(BasePermission):
    """Admits workers."""

    def has_permission(self, request: Request, _view: Any) -> bool:
        if not caller_of(request).is_worker:
            raise ApiError(403, "wrong_principal", "This endpoint is for workers.")
        return True


class IsInstallationOperator(BasePermission):
    """Admits operators to what concerns every tenant. For a tenant's program the resource does not exist."""

    def has_permission(self, request: Request, _view: Any) -> bool:
        caller = caller_of(request)
        if caller.is_worker:
            raise ApiError(403, "wrong_principal", "This endpoint is not for workers.")
        require_installation(caller)
        return True


def require_installation(caller: ClientPrincipal | WorkerPrincipal) -> None:
    """Raise NotFound for callers other than operators, OperatorOnly for operators without the permission."""
    if not (isinstance(caller, ClientPrincipal) and caller.is_operator):
        raise NotFound("There is no such thing, or you may not see it.")
    if INSTALLATION not in caller.scopes:
        raise OperatorOnly("The permission to change pools is needed.")


def requires_scope(scope: str) -> type[BasePermission]:
    """Return a permission for clients that have the scope."""

    class MayUseScope(BasePermission):
        def has_permission(self, request: Request, _view: Any) -> bool:
            caller = caller_of(request)
            if caller.is_worker:
                raise ApiError(403, "wrong_principal", "This endpoint is not for workers.")
            if scope not in caller.scopes:
                raise ApiError(403, "insufficient_scope", f"The scope {scope} is needed.", scope=scope)
            return True

    return MayUseScope


def requires_scope_or_worker(scope: str) -> type[BasePermission]:
    """Return a permission for workers, and for clients that have the scope."""

    class MayOrWorks(requires_scope(scope)):  # type: ignore[misc] # made by a function
        def has_permission(self, request: Request, view: Any) -> bool:
            return caller_of(request).is_worker or super().has_permission(request, view)

    return MayOrWorks


def caller_of(request: Request) -> ClientPrincipal | WorkerPrincipal:
    """Return the authenticated caller. Raises NotAuthenticated without one."""
    caller: Any = request.user
    if not isinstance(caller, ClientPrincipal | WorkerPrincipal):
        raise NotAuthenticated
    return caller
