"""May they come in. Every view names one of these; without one it lets nobody in."""

from typing import Any

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from orchestrator.access.problems import Refusal


class Refused(BasePermission):
    """The default: a view that says nothing is closed."""

    def has_permission(self, _request: Request, _view: Any) -> bool:
        return False


class IsWorker(BasePermission):
    def has_permission(self, request: Request, _view: Any) -> bool:
        if not getattr(request.user, "is_authenticated", False):
            raise NotAuthenticated
        if not request.user.is_worker:
            raise Refusal(403, "wrong_principal", "This endpoint is for workers.")
        return True


def may(scope: str) -> type[BasePermission]:
    """A permission for clients that have the scope."""

    class MayUseScope(BasePermission):
        def has_permission(self, request: Request, _view: Any) -> bool:
            if not getattr(request.user, "is_authenticated", False):
                raise NotAuthenticated
            if request.user.is_worker:
                raise Refusal(403, "wrong_principal", "This endpoint is not for workers.")
            if scope not in request.user.scopes:
                raise Refusal(403, "insufficient_scope", f"The scope {scope} is needed.", scope=scope)
            return True

    return MayUseScope
