"""API calls without DRF: what a call reads of its request, and what it answers.

Views and `orchestrator.http.fast_path` run the same functions, which have these two as parameter and result.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.json_parser import body_of
from orchestrator.http.client_ip import client_address
from orchestrator.http.observability.request_context import RequestContext, context_of


class Headers(Protocol):
    """Request headers by their name, in any case."""

    def get(self, name: str, /) -> str | None: ...


class AuthenticatedRequest(Protocol):
    """The part that DRF's request and `ApiCall` have in common."""

    user: Any

    @property
    def headers(self) -> Headers: ...


@dataclass(slots=True)
class ApiCall:
    """A request whose caller is authenticated and whose body is parsed.

    Attributes:
        user: The caller; permissions were checked.
        headers: The request headers.
        context: Identifiers of the request.
        address: The client's address, or None where it is not known.
        body: The JSON object in the body; `{}` without a body.
    """

    user: Any
    headers: Headers
    context: RequestContext
    address: str | None
    body: dict[str, Any]


class IdentifiedTokens(NamedTuple):
    """Bearer tokens with which a verified client, such as `runner:7`, may send its next requests."""

    client: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A response.

    Attributes:
        data: The JSON document; None for no body.
        status: The HTTP status.
        headers: The headers beside those of every response.
        identified: The client of a call that authenticates otherwise than by a principal, or None.
    """

    data: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    identified: IdentifiedTokens | None = None


def respond(function: Callable[..., ApiAnswer], request: Request, *arguments: Any) -> Response:
    """Run the function of a call for a DRF view.

    Args:
        function: The function; its first argument is the `ApiCall`.
        request: DRF's request, after authentication and permissions.
        arguments: Further arguments, such as the lease id in the path.
    """
    call = ApiCall(request.user, request.headers, context_of(request), client_address(request), body_of(request))
    answer = function(call, *arguments)
    return Response(answer.data, status=answer.status, headers=answer.headers)
