"""The schema, and how its fields and documents are resolved."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import strawberry
from graphql import DocumentNode, GraphQLError, GraphQLSchema
from strawberry.extensions import SchemaExtension
from strawberry.schema.config import StrawberryConfig
from strawberry.types import ExecutionContext
from strawberry.utils.str_converters import to_camel_case

from orchestrator.protocols.stella.graph.object_types import DateTime
from orchestrator.protocols.stella.graph.queries import QueryRoot
from orchestrator.protocols.stella.graph.subscriptions import SubscriptionRoot

# The parsed and valid document, among the extensions of an operation. No client can send an object of this type.
DOCUMENT: Final = "document"


@cache
def _member(name: str) -> str:
    """Return the member that a field displays: `class_` has an underscore because `class` is a word of Python."""
    return to_camel_case(name.rstrip("_"))


def member_of(source: Any, name: str) -> Any:
    """Return the value of a field without a resolver. Log events have members with underscores."""
    member = _member(name)
    return source[member] if member in source else source.get(name)


class CheckedDocument(SchemaExtension):
    """Executes the document that was checked, instead of parsing and validating the text again."""

    def on_parse(self) -> Iterator[None]:
        """Provide the document."""
        document: DocumentNode = (self.execution_context.operation_extensions or {})[DOCUMENT]
        self.execution_context.graphql_document = document
        self.execution_context.pre_execution_errors = []
        yield


class DashboardSchema(strawberry.Schema):
    """The schema. `execution` formats and logs errors."""

    def process_errors(self, errors: list[GraphQLError], execution_context: ExecutionContext | None = None) -> None:
        """Log nothing: an error of a client is none of the server."""

    @property
    def core(self) -> GraphQLSchema:
        """The schema of graphql-core, for which documents are validated."""
        return self._schema


_DATE_TIME = strawberry.scalar(
    name="DateTime",
    description="A timestamp, RFC 3339.",
    serialize=lambda value: value,
    parse_value=lambda value: value,
)

schema: Final = DashboardSchema(
    QueryRoot,
    subscription=SubscriptionRoot,
    extensions=[CheckedDocument],
    config=StrawberryConfig(default_resolver=member_of, scalar_map={DateTime: _DATE_TIME}),
)
