"""Authenticates docker clients: the password is a personal key, a JSON Web Token or the key of a project."""

import base64
import binascii
from typing import Any, Final

from django.http import QueryDict
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.authentication import BencherCaller, authenticate_person, authenticate_project
from workers.registry.tokens import PROJECT_PREFIX

CHALLENGE: Final = 'Basic realm="runtime-orchestrator registry"'


class KeyAsPassword(BaseAuthentication):
    """Authenticates by Basic, or by the member `password` of a form. The user name may be any text."""

    def authenticate_header(self, _request: Request) -> str:
        return CHALLENGE

    def authenticate(self, request: Request) -> tuple[BencherCaller, None]:
        """Return the caller whose key is the password.

        Raises:
            ApiError: 401; 403 for a locked account; 429.
        """
        password = (form_of(request).get("password") if request.method == "POST" else None) or _basic_password(request)
        if password is None:
            detail = "Log in with any user name, and a personal key or the key of a project as password."
            raise _unauthenticated(detail)
        network = rate_limit_key(request)
        try:
            if password.startswith(PROJECT_PREFIX):
                return authenticate_project(password, network=network), None
            return authenticate_person(password, network=network), None
        except ApiError as error:
            if error.status in {400, 401, 404}:
                raise _unauthenticated(error.detail) from None
            raise


def form_of(request: Request) -> QueryDict:
    """Return the form in the body; an empty one without a body."""
    form: Any = request.data
    return form if isinstance(form, QueryDict) else QueryDict()


def _basic_password(request: Request) -> str | None:
    scheme, _, value = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return decoded.partition(":")[2] or None


def _unauthenticated(message: str) -> ApiError:
    return ApiError(401, "unauthenticated", message, headers={"WWW-Authenticate": CHALLENGE})
