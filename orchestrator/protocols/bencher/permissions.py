"""Permissions of views of this protocol."""

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.authentication import BencherCaller, unauthenticated


class IsServerAdmin(BasePermission):
    """Admits staff with the permission to change workers."""

    def has_permission(self, request: Request, _view: Any) -> bool:
        if not caller_of(request).is_server_admin:
            detail = "Only a server admin may do this: staff with the permission workers.change_worker."
            raise ApiError(403, "forbidden", detail)
        return True


def caller_of(request: Request) -> BencherCaller:
    """Return the caller of a view whose authentication is of this protocol."""
    caller: Any = request.user
    if not isinstance(caller, BencherCaller):
        raise unauthenticated("A personal key or JSON Web Token is needed.")
    return caller
