"""View of `POST /api/graphql`: queries. Subscriptions need a WebSocket at the same address (`sockets.py`)."""

from typing import Any, Final

from graphql import OperationType
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.asgi.stream_responses import can_stream
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.graph import openapi
from orchestrator.protocols.stella.graph.execution import (
    GraphRequest,
    InvalidDocument,
    check_request,
    execute_query,
    serialize_error,
)
from orchestrator.protocols.stella.graph.openapi import GRAPHQL_RESPONSE, GraphQLOperationSchema
from orchestrator.protocols.stella.graph.serializers import GraphQLInput
from runtime_jobs.models.tenants import Scope

NO_SUBSCRIPTION: Final = "Subscriptions need a WebSocket with the subprotocol graphql-transport-ws at this address."


class GraphQLResponseRenderer(JSONRenderer):
    """Renders JSON under the media type of GraphQL over HTTP, where the status says whether the document was valid."""

    media_type = GRAPHQL_RESPONSE
    format = "graphql"


class GraphQLView(StrictQueryMixin, APIView):
    """Executes queries on what the caller may see."""

    http_method_names = ["post"]
    schema = GraphQLOperationSchema()
    renderer_classes = [JSONRenderer, GraphQLResponseRenderer]

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ)]

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a handshake that a WSGI server cannot accept, before its missing token is refused."""
        if request.headers.get("Upgrade", "").lower() == "websocket" and not can_stream(request):
            detail = "This server process (WSGI) accepts no WebSockets. Connect to a process of config.asgi."
            raise ApiError(503, "no_streams", detail, headers={"Retry-After": "60"})
        super().initial(request, *args, **kwargs)

    @openapi.EXECUTE_GRAPHQL
    def post(self, request: Request) -> Response:
        """Execute a query. Its document is checked before any statement: depth, tokens, aliases and nodes."""
        request_id = context_of(request).request_id
        validated = parse(GraphQLInput, body_of(request))
        try:
            checked = check_request(
                GraphRequest(validated["query"], validated["variables"] or {}, validated["operationName"] or None)
            )
        except InvalidDocument as error:
            return _refused(request, [serialize_error(one, request_id) for one in error.errors])
        if checked.kind != OperationType.QUERY:
            raise ApiError(400, "invalid", NO_SUBSCRIPTION, errors={"query": [NO_SUBSCRIPTION]})
        return _respond(request, execute_query(checked, client_of(request), request_id))


def _respond(request: Request, response: dict[str, Any]) -> Response:
    return Response(response) if "data" in response else _refused(request, response["errors"])


def _refused(request: Request, found: list[dict[str, Any]]) -> Response:
    """Return the errors of a document that was not executed. As `application/json` that is 200 by the specification."""
    renderer: Any = request.accepted_renderer
    return Response({"errors": found}, status=400 if renderer.media_type == GRAPHQL_RESPONSE else 200)
