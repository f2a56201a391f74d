"""API calls without DRF: what a call reads of its request, and what it answers.

Views and `orchestrator.http.fast_path` run the same functions, which have these two as parameter and result.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.json_parser import body_of
from orchestrator.http.client_ip import client_address
from orchestrator.http.observability.request_context import RequestContext, context_of
from runtime_jobs.db_errors import is_database_unavailable

log = logging.getLogger(__name__)

MAX_REPEAT_SECONDS = 3.0

E = TypeVar("E")
R = TypeVar("R")


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


@dataclass(frozen=True)
class CombinedCall(Generic[E, R]):
    """A call of which several of any callers run as one operation. A call by itself is a group of one.

    Attributes:
        read: Returns what the operation needs of a call: its arguments are those of the call. It reads no database.
        run: Runs the operation for several calls, and returns the result or the refusal of each.
        answer: Returns the response to a call with this result.
        fits: Returns for each call whether it belongs into a group with the calls before it. One that takes long, or
            must follow another one, runs in a thread of the requests, where clients share the threads.
    """

    read: Callable[..., E]
    run: Callable[[Sequence[E]], Sequence[R | Exception]]
    answer: Callable[[E, R], ApiAnswer]
    fits: Callable[[Sequence[E]], Sequence[bool]] = lambda entries: [True] * len(entries)

    def __call__(self, call: ApiCall, *arguments: Any) -> ApiAnswer:
        """Run the operation for one call."""
        entry = self.read(call, *arguments)
        (result,) = self.run([entry])
        if isinstance(result, Exception):
            raise result
        return self.answer(entry, result)

    def run_each(self, entries: Sequence[E]) -> list[ApiAnswer | Exception]:
        """Run the operation for several calls. An unexpected error of one of them does not affect the others.

        Each call is then run by itself, for which nothing of the group may have been stored, or its repetition has no
        further effect. An unavailable database is unavailable for all.
        """
        try:
            results = self.run(entries) if entries else ()
        except Exception as error:
            if len(entries) == 1 or is_database_unavailable(error):
                return [error] * len(entries)
            log.warning("%d combined calls are repeated one by one", len(entries), exc_info=True)
            return self._run_one_by_one(entries, error)
        return [self._answer(entry, result) for entry, result in zip(entries, results, strict=True)]

    def _run_one_by_one(self, entries: Sequence[E], error: Exception) -> list[ApiAnswer | Exception]:
        """Run each call by itself. After `MAX_REPEAT_SECONDS` the others get the error: nothing of them was stored."""
        until = time.monotonic() + MAX_REPEAT_SECONDS
        answers: list[ApiAnswer | Exception] = []
        for entry in entries:
            answers += [error] if time.monotonic() > until else self.run_each([entry])
        return answers

    def _answer(self, entry: E, result: R | Exception) -> ApiAnswer | Exception:
        try:
            return result if isinstance(result, Exception) else self.answer(entry, result)
        except Exception as error:  # noqa: BLE001 the call was executed: it must not be repeated
            return error


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
