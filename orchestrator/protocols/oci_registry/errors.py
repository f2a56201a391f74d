"""Errors in the envelope of the OCI distribution specification: `{"errors": [{"code", "message", "detail"}]}`."""

import errno
import json
import logging
from typing import Any, Final

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.asgi.responses import overloaded
from orchestrator.http.errors import problems
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.images.errors import (
    DENIED,
    INVALID_MANIFEST,
    INVALID_SIZE,
    TOO_MANY_REQUESTS,
    UNKNOWN_NAME,
    UNSUPPORTED,
    RegistryError,
)

log = logging.getLogger(__name__)

API_VERSION: Final = "Docker-Distribution-Api-Version"
VERSION: Final = "registry/2.0"
UNAUTHORIZED: Final = "UNAUTHORIZED"
# Codes of errors that the whole server has, by status. Clients find none of the specification for others.
_CODES: Final = {
    400: UNSUPPORTED,
    401: UNAUTHORIZED,
    403: DENIED,
    404: UNKNOWN_NAME,
    405: UNSUPPORTED,
    411: INVALID_SIZE,
    413: INVALID_SIZE,
    429: TOO_MANY_REQUESTS,
}
# Of the disk, and of the process. The server is not wrong then, and the client may repeat its request.
_STORE_FAILURES: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE}
)


class RegistryErrorResponse(Response):
    """A JSON response, whatever `Accept` says."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = "application/json"
        return json.dumps(self.data)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception of a view of this protocol."""
    request = context["request"]
    if isinstance(error, RegistryError):
        return registry_error_response(error)
    if isinstance(error, OSError) and error.errno in _STORE_FAILURES:
        log.error("the store of images failed: %s", error)
        return error_response(overloaded("The store of images is full or cannot be used."), request)
    return error_response(problems.to_api_error(error, context_of(request).request_id), request)


def registry_error_response(error: RegistryError) -> Response:
    """Return the response to a refusal of the registry."""
    return _response(error.status, error.code, error.message, error.detail, error.headers)


def error_response(error: ApiError, request: HttpRequest | Request) -> Response:
    """Return the response to an error, also to one outside the views (`settings.ERROR_DIALECTS`)."""
    code = INVALID_MANIFEST if error.status == 413 and "/manifests/" in request.path else None
    code = code or _CODES.get(error.status, "UNKNOWN")
    detail = {"request_id": context_of(request).request_id, "error_code": error.code}
    return _response(error.status, code, error.detail, detail, error.headers)


def _response(status: int, code: str, message: str, detail: Any, headers: dict[str, str]) -> Response:
    entry = {"code": code, "message": message} | ({} if detail is None else {"detail": detail})
    return RegistryErrorResponse({"errors": [entry]}, status=status, headers={API_VERSION: VERSION} | headers)
