"""OpenAPI of `POST /api/graphql`."""

from typing import Any, Final, Literal

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import request_example, response_example
from orchestrator.protocols.stella.graph.serializers import GraphQLInput, GraphQLResponseOutput
from orchestrator.protocols.stella.openapi import StellaSchema

GRAPHQL_RESPONSE: Final = "application/graphql-response+json"

_REQUEST: Final[dict[str, Any]] = {
    "query": "query Jobs($first: Int!) { jobs(first: $first) { results { jobId status } next } }",
    "variables": {"first": 50},
}
_RESPONSE: Final[dict[str, Any]] = {
    "data": {"jobs": {"results": [{"jobId": "01890a5d-ac96-774b-bcce-b302099a8057", "status": "queued"}], "next": None}}
}
EXECUTE_GRAPHQL = operation_docs(
    "execute_graphql",
    request=GraphQLInput,
    responses={
        (200, "application/json"): GraphQLResponseOutput,
        (200, GRAPHQL_RESPONSE): GraphQLResponseOutput,
    },
    examples=[request_example("jobs", _REQUEST), response_example("jobs", _RESPONSE)],
    codes=("query_too_expensive",),
)


class GraphQLOperationSchema(StellaSchema):
    """Schema of the operation, with the status that an invalid document has as `application/graphql-response+json`."""

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        bodies["400"]["content"][GRAPHQL_RESPONSE] = bodies["200"]["content"][GRAPHQL_RESPONSE]
        return bodies
