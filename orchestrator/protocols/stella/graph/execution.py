"""Executes requests: the document is checked, then its query executed or its subscription begun; errors get codes."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from graphql import GraphQLError, OperationType

from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.errors.problems import ApiError, to_api_error
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.graph.documents import ParsedDocument, parse_document
from orchestrator.protocols.stella.graph.queries import GraphContext
from orchestrator.protocols.stella.graph.schema import DOCUMENT, schema
from orchestrator.pubsub.log_hub import SourceUnavailable

# Refusals of arguments have the code of query parameters in the REST API.
_ARGUMENTS: Final = {"invalid_query": "invalid"}


@dataclass(frozen=True)
class GraphRequest:
    """A request of a client.

    Attributes:
        query: The text of the document.
        variables: Its variables.
        operation_name: The operation that is executed, if the document has several.
    """

    query: str
    variables: Mapping[str, Any]
    operation_name: str | None


@dataclass(frozen=True)
class CheckedRequest:
    """A request within all limits.

    Attributes:
        request: The request.
        document: Its document.
        kind: The type of its operation.
    """

    request: GraphRequest
    document: ParsedDocument
    kind: OperationType

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments with which the schema executes it."""
        return {
            "query": self.request.query,
            "variable_values": dict(self.request.variables),
            "operation_name": self.request.operation_name,
            "operation_extensions": {DOCUMENT: self.document.tree},
        }


class InvalidDocument(Exception):
    """The document has errors of syntax, or does not fit the schema."""

    def __init__(self, errors_of_document: tuple[GraphQLError, ...]) -> None:
        super().__init__(errors_of_document[0].message)
        self.errors = errors_of_document


def check_request(request: GraphRequest) -> CheckedRequest:
    """Return the request with its document, without any statement.

    Raises:
        ApiError: `query_too_expensive`, or `invalid`.
        InvalidDocument: The document is not valid.
    """
    document = parse_document(schema.core, request.query)
    if not isinstance(document, ParsedDocument):
        raise InvalidDocument(document)
    return CheckedRequest(request, document, document.check(request.operation_name, request.variables))


def execute_query(checked: CheckedRequest, caller: ClientPrincipal, request_id: str) -> dict[str, Any]:
    """Execute a query in this thread, and return the response: `data`, and `errors` if there are any."""
    result = schema.execute_sync(**checked.arguments, context_value=GraphContext(caller))
    return serialize_result(result, request_id)


async def subscribe(
    checked: CheckedRequest, caller: ClientPrincipal, request_id: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the responses of a subscription, in the event loop. One without `data` is the last one."""
    results: Any = await schema.subscribe(**checked.arguments, context_value=GraphContext(caller))
    async with aclosing(results):
        async for result in results:
            yield serialize_result(result, request_id)


def serialize_result(result: Any, request_id: str) -> dict[str, Any]:
    """Return a response, without `data` if nothing was executed."""
    response: dict[str, Any] = {} if result.data is None and result.errors else {"data": result.data}
    if result.errors:
        response["errors"] = [serialize_error(error, request_id) for error in result.errors]
    return response


def serialize_error(error: GraphQLError, request_id: str) -> dict[str, Any]:
    """Return an error of a document or of one of its fields. `extensions` has the code and members of the REST API."""
    if error.original_error is None or isinstance(error.original_error, GraphQLError):
        refusal = ApiError(400, "invalid", error.message)
    else:
        refusal = refusal_of(error.original_error, request_id)
    found: dict[str, Any] = {"message": refusal.detail}
    if error.locations:
        found["locations"] = [{"line": place.line, "column": place.column} for place in error.locations]
    if error.path:
        found["path"] = error.path
    return found | {"extensions": serialize_refusal(refusal, request_id)}


def serialize_refusal(refusal: ApiError, request_id: str) -> dict[str, Any]:
    """Return the `extensions` of an error."""
    return {"code": refusal.code, "status": refusal.status, "request_id": request_id, **refusal.members}


def refusal_of(error: Exception, request_id: str) -> ApiError:
    """Return the refusal for an exception, in the words of document 004. An unexpected one is logged."""
    if isinstance(error, SourceUnavailable):
        return ApiError(503, "database_unavailable", "The database cannot be reached. Subscribe again later.")
    refusal = errors.translated(to_api_error(error, request_id))
    if refusal.code not in _ARGUMENTS:
        return refusal
    detail = refusal.detail.replace("query parameter", "argument")
    return ApiError(refusal.status, _ARGUMENTS[refusal.code], detail, **refusal.members)
