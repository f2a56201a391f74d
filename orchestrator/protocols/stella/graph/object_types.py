"""The object types of the schema. Their values are the dictionaries that the REST API renders, member by member.

No type renders anything: a field is the member of the same name. `tests` compares the types with the serializers of the
REST API. Words such as statuses are texts, because `pack-run` and `*` can be no names of an enumeration.
"""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, NewType, TypeVar, dataclass_transform

import strawberry

from orchestrator.protocols.stella.graph.limits import MAX_FIRST

T = TypeVar("T")

DateTime = NewType("DateTime", str)
"""A timestamp as the REST API renders it."""

Limit = Annotated[int, strawberry.argument(description=f"The largest number of nodes, 1 to {MAX_FIRST}.")]
Members = strawberry.Parent[Mapping[str, Any]]


@dataclass_transform(kw_only_default=True, field_specifiers=(strawberry.field,))
def graph_type(cls: type[T]) -> type[T]:
    """Make an object type of a class: its name is that of the class without `Object`, its description the docstring."""
    return strawberry.type(cls, name=cls.__name__.removesuffix("Object"), description=inspect.getdoc(cls))


@graph_type
class AuthorObject:
    """The client, operator or server process that caused a change."""

    kind: str
    id: str
