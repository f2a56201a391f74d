"""Documents of GraphQL: parsed, limited and validated once for each text, before any statement."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from graphql import (
    DocumentNode,
    GraphQLError,
    GraphQLSchema,
    GraphQLSyntaxError,
    OperationDefinitionNode,
    OperationType,
    parse,
    validate,
)

from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.graph.limits import check_nodes, check_text, check_tokens, operations_of

MAX_KEPT: Final = 64
MAX_KEPT_CHARACTERS: Final = 8 << 10  # of one text: a parsed document takes a hundred times as much memory
MAX_ERRORS: Final = 10

Parsed: TypeAlias = "ParsedDocument | tuple[GraphQLError, ...]"


@dataclass(frozen=True, eq=False)
class ParsedDocument:
    """A valid document within the limits of its text.

    Attributes:
        schema: The schema for which it is valid.
        tree: Its syntax tree.
    """

    schema: GraphQLSchema
    tree: DocumentNode

    def operation(self, name: str | None) -> OperationDefinitionNode:
        """Return the operation with this name, or the only one.

        Raises:
            ApiError: `invalid`; there is none, or a name is needed.
        """
        operations = operations_of(self.tree)
        if name is not None:
            operations = [node for node in operations if node.name is not None and node.name.value == name]
        if len(operations) != 1:
            problem = "The document has no such operation." if name else "Name one of the operations of the document."
            raise ApiError(400, "invalid", "operationName is not valid.", errors={"operationName": [problem]})
        return operations[0]

    def check(self, name: str | None, variables: Mapping[str, Any]) -> OperationType:
        """Check what depends on the variables, and return the type of the operation.

        Raises:
            ApiError: `query_too_expensive`, or `invalid`.
        """
        operation = self.operation(name)
        check_nodes(self.schema, self.tree, operation, variables)
        return operation.operation


def parse_document(schema: GraphQLSchema, text: str) -> Parsed:
    """Return a document, or its errors.

    Raises:
        ApiError: `query_too_expensive`.
    """
    if len(text) > MAX_KEPT_CHARACTERS:
        return _parse(schema, text)
    return _parse_once(schema, text)


def _parse(schema: GraphQLSchema, text: str) -> Parsed:
    try:
        check_tokens(text)
        tree = parse(text, allow_empty_selection_sets=False)
    except GraphQLSyntaxError as error:
        return (error,)
    check_text(tree)
    errors = validate(schema, tree, max_errors=MAX_ERRORS)
    return tuple(errors) if errors else ParsedDocument(schema, tree)


_parse_once = lru_cache(maxsize=MAX_KEPT)(_parse)
