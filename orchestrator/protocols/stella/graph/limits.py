"""Limits of documents, checked before a document is executed: a refused one costs no statement.

The number of tokens, the depth and the aliases are those of the text. The number of nodes depends on the variables: it
is the sum, over all lists, of the product of the `first` arguments on the way to the list. Each fragment is visited
once, however often it is used.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLCompositeType,
    GraphQLField,
    GraphQLInterfaceType,
    GraphQLObjectType,
    GraphQLSchema,
    InlineFragmentNode,
    IntValueNode,
    Lexer,
    OperationDefinitionNode,
    SelectionSetNode,
    Source,
    TokenKind,
    ValueNode,
    VariableNode,
    get_named_type,
    get_nullable_type,
    is_list_type,
    is_object_type,
)

from orchestrator.http.api.json_parser import MAX_DIGITS
from orchestrator.http.errors.problems import ApiError

MAX_CHARACTERS: Final = 64 << 10
MAX_TOKENS: Final = 2_000
MAX_NESTING: Final = 64  # brackets: the parser calls itself for each, and Python limits that
MAX_DEPTH: Final = 8
MAX_ALIASES: Final = 15
MAX_NODES: Final = 5_000
MAX_FIRST: Final = 100
MAX_INTROSPECTION_DEPTH: Final = 20  # the query that tools send has 15
FIRST: Final = "first"
INTROSPECTION: Final = frozenset({"__schema", "__type"})
# Lists without `first`: their greatest number of nodes. `orchestrator.selectors.dashboard` limits them.
BOUNDED_LISTS: Final[Mapping[tuple[str, str], int]] = {
    ("Dashboard", "tenants"): 0,  # of texts, which are no nodes
    ("Dashboard", "jobTypes"): 10,
    ("Dashboard", "failures"): 50,
    ("Dashboard", "sources"): 50,
    ("Dashboard", "breakers"): 50,
    ("IncidentTotals", "newest"): 50,
}

_OPENING: Final = frozenset({TokenKind.BRACE_L, TokenKind.BRACKET_L, TokenKind.PAREN_L})
_STRINGS: Final = frozenset({TokenKind.STRING, TokenKind.BLOCK_STRING})
_CLOSING: Final = frozenset({TokenKind.BRACE_R, TokenKind.BRACKET_R, TokenKind.PAREN_R})


def too_expensive(detail: str, limit: int) -> ApiError:
    """Return the refusal of a document above a limit."""
    return ApiError(400, "query_too_expensive", detail, limit=limit)


def check_tokens(text: str) -> None:
    """Refuse a text with too many characters, tokens or nested brackets, before it is parsed.

    Raises:
        ApiError: `query_too_expensive`; `invalid` for a string that the database cannot store, or a number that Python
            does not convert.
        GraphQLSyntaxError: A character or string is wrong.
    """
    if len(text) > MAX_CHARACTERS:
        raise too_expensive(f"A document may have at most {MAX_CHARACTERS} characters.", MAX_CHARACTERS)
    lexer = Lexer(Source(text))
    nesting = 0
    for _ in range(MAX_TOKENS + 1):
        token = lexer.advance()
        kind = token.kind
        if kind == TokenKind.EOF:
            return
        if kind in _STRINGS and "\0" in (token.value or ""):
            raise ApiError(400, "invalid", "A string of the document contains a NUL character.")
        if kind == TokenKind.INT and (digits := len((token.value or "").lstrip("-"))) > MAX_DIGITS:
            detail = f"A number of the document has {digits} digits; at most {MAX_DIGITS} are allowed."
            raise ApiError(400, "invalid", detail)
        nesting += (kind in _OPENING) - (kind in _CLOSING)
        if nesting > MAX_NESTING:
            raise too_expensive(f"A document may have at most {MAX_NESTING} nested brackets.", MAX_NESTING)
    raise too_expensive(f"A document may have at most {MAX_TOKENS} tokens.", MAX_TOKENS)


def check_text(document: DocumentNode) -> None:
    """Refuse a document with too many aliases or levels, in any of its operations, before it is validated.

    Raises:
        ApiError: `query_too_expensive`.
    """
    fragments = fragments_of(document)
    aliases = sum(_aliases(definition) for definition in _definitions(document))
    if aliases > MAX_ALIASES:
        raise too_expensive(f"A document may have at most {MAX_ALIASES} aliases; it has {aliases}.", MAX_ALIASES)
    depths = _Depths(fragments)
    for operation in operations_of(document):
        depth, introspection = depths.of(operation.selection_set)
        if depth > MAX_DEPTH:
            raise too_expensive(f"A document may have at most {MAX_DEPTH} levels; it has {depth}.", MAX_DEPTH)
        if introspection > MAX_INTROSPECTION_DEPTH:
            detail = f"An introspection may have at most {MAX_INTROSPECTION_DEPTH} levels; it has {introspection}."
            raise too_expensive(detail, MAX_INTROSPECTION_DEPTH)
    if aliases and any(_has_alias_below(node, fragments) for node in _introspections(document)):
        raise too_expensive("An introspection may have no aliases.", 0)


def check_nodes(
    schema: GraphQLSchema, document: DocumentNode, operation: OperationDefinitionNode, variables: Mapping[str, Any]
) -> None:
    """Refuse an operation that may return too many nodes. The document was validated.

    Raises:
        ApiError: `query_too_expensive`; `invalid` for a `first` below 1.
    """
    root = schema.get_root_type(operation.operation)
    if root is None:
        return
    nodes = _Nodes(schema, fragments_of(document), _values(operation, variables)).of(operation.selection_set, root)
    if nodes > MAX_NODES:
        detail = f"A document may request at most {MAX_NODES} nodes; it requests {nodes}. Use a smaller `first`."
        raise too_expensive(detail, MAX_NODES)


def fragments_of(document: DocumentNode) -> dict[str, FragmentDefinitionNode]:
    """Return the fragments of a document by name."""
    found = (node for node in document.definitions if isinstance(node, FragmentDefinitionNode))
    return {node.name.value: node for node in found}


def operations_of(document: DocumentNode) -> list[OperationDefinitionNode]:
    """Return the operations of a document."""
    return [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]


def _definitions(document: DocumentNode) -> Iterator[OperationDefinitionNode | FragmentDefinitionNode]:
    for node in document.definitions:
        if isinstance(node, OperationDefinitionNode | FragmentDefinitionNode):
            yield node


def _fields(selection_set: SelectionSetNode | None) -> Iterator[FieldNode]:
    """Yield all fields at any level of a text, without those of the fragments that it names."""
    for node in selection_set.selections if selection_set else ():
        if isinstance(node, FieldNode):
            yield node
        if isinstance(node, FieldNode | InlineFragmentNode):
            yield from _fields(node.selection_set)


def _aliases(definition: OperationDefinitionNode | FragmentDefinitionNode) -> int:
    return sum(field.alias is not None for field in _fields(definition.selection_set))


def _introspections(document: DocumentNode) -> Iterator[FieldNode]:
    for definition in _definitions(document):
        yield from (field for field in _fields(definition.selection_set) if field.name.value in INTROSPECTION)


def _has_alias_below(field: FieldNode, fragments: Mapping[str, FragmentDefinitionNode]) -> bool:
    """Return whether the field, or one below it, has an alias."""
    seen: set[str] = set()
    waiting = [field.selection_set]
    if field.alias is not None:
        return True
    while waiting:
        for node in selections_of(waiting.pop()):
            if isinstance(node, FragmentSpreadNode):
                name = node.name.value
                if name in fragments and name not in seen:
                    seen.add(name)
                    waiting.append(fragments[name].selection_set)
                continue
            if isinstance(node, FieldNode) and node.alias is not None:
                return True
            waiting.append(node.selection_set)
    return False


def selections_of(
    selection_set: SelectionSetNode | None,
) -> Iterator[FieldNode | InlineFragmentNode | FragmentSpreadNode]:
    """Yield the selections of one level."""
    for node in selection_set.selections if selection_set else ():
        if isinstance(node, FieldNode | InlineFragmentNode | FragmentSpreadNode):
            yield node


class _Depths:
    """Measures levels of fields: of data, and of introspection, which is answered from memory."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode]) -> None:
        self._fragments = fragments
        self._known: dict[str, tuple[int, int]] = {}

    def of(self, selection_set: SelectionSetNode | None) -> tuple[int, int]:
        depth = introspection = 0
        for node in selections_of(selection_set):
            if isinstance(node, FieldNode):
                inner = self.of(node.selection_set)
                found = (0, 1 + max(inner)) if node.name.value in INTROSPECTION else (1 + inner[0], inner[1])
            elif isinstance(node, InlineFragmentNode):
                found = self.of(node.selection_set)
            else:
                found = self._of_fragment(node.name.value)
            depth, introspection = max(depth, found[0]), max(introspection, found[1])
        return depth, introspection

    def _of_fragment(self, name: str) -> tuple[int, int]:
        if name not in self._known:
            self._known[name] = (0, 0)  # of a cycle, which the validation refuses
            fragment = self._fragments.get(name)
            self._known[name] = self.of(fragment.selection_set) if fragment else (0, 0)
        return self._known[name]


class _Nodes:
    """Counts the nodes of lists."""

    def __init__(
        self, schema: GraphQLSchema, fragments: Mapping[str, FragmentDefinitionNode], values: Mapping[str, Any]
    ) -> None:
        self._schema, self._fragments, self._values = schema, fragments, values
        self._known: dict[str, int] = {}

    def of(self, selection_set: SelectionSetNode | None, parent: GraphQLCompositeType) -> int:
        nodes = 0
        for node in selections_of(selection_set):
            if isinstance(node, FieldNode):
                nodes += self._of_field(node, parent)
            elif isinstance(node, InlineFragmentNode):
                condition = node.type_condition
                nodes += self.of(node.selection_set, self._type(condition.name.value) if condition else parent)
            else:
                nodes += self._of_fragment(node.name.value)
        return nodes

    def _of_field(self, node: FieldNode, parent: GraphQLCompositeType) -> int:
        field = _field_of(parent, node.name.value)
        if field is None:  # introspection
            return 0
        inner_type = get_named_type(field.type)
        inner = self.of(node.selection_set, inner_type) if is_object_type(inner_type) else 0
        if FIRST in field.args:
            first = self._first(node)
            return first + first * inner
        if is_list_type(get_nullable_type(field.type)) and (parent.name, node.name.value) in BOUNDED_LISTS:
            bound = BOUNDED_LISTS[parent.name, node.name.value]
            return bound + bound * inner
        return inner

    def _of_fragment(self, name: str) -> int:
        if name not in self._known:
            fragment = self._fragments[name]
            self._known[name] = self.of(fragment.selection_set, self._type(fragment.type_condition.name.value))
        return self._known[name]

    def _type(self, name: str) -> GraphQLCompositeType:
        found: Any = self._schema.get_type(name)
        composite: GraphQLCompositeType = found
        return composite

    def _first(self, node: FieldNode) -> int:
        """Return the `first` of a field. A value of another type is 0: the execution refuses it before a resolver."""
        given = next((argument.value for argument in node.arguments or () if argument.name.value == FIRST), None)
        first = integer_of(given, self._values)
        if first is None:
            return 0
        if first > MAX_FIRST:
            detail = f"`{FIRST}` of {node.name.value} may be at most {MAX_FIRST}; it is {first}."
            raise too_expensive(detail, MAX_FIRST)
        if first < 1:
            problem = f"Must be a number from 1 to {MAX_FIRST}."
            raise ApiError(400, "invalid", f"`{FIRST}` of {node.name.value} is not valid.", errors={FIRST: [problem]})
        return first


def _field_of(parent: GraphQLCompositeType, name: str) -> GraphQLField | None:
    if isinstance(parent, GraphQLObjectType | GraphQLInterfaceType):
        return parent.fields.get(name)
    return None


def _values(operation: OperationDefinitionNode, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of an operation as they were sent, and the defaults of those that are missing."""
    defaults = {
        definition.variable.name.value: integer_of(definition.default_value, {})
        for definition in operation.variable_definitions or ()
    }
    return defaults | dict(variables)


def integer_of(value: ValueNode | None, variables: Mapping[str, Any]) -> int | None:
    """Return the number that an argument has, by its text or by a variable, or None for any other value."""
    if isinstance(value, IntValueNode):
        return int(value.value)
    found = variables.get(value.name.value) if isinstance(value, VariableNode) else None
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
