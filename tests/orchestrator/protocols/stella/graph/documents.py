"""Documents of clients, with every member of a type."""

from typing import Any

from graphql import get_named_type, is_object_type

from orchestrator.protocols.stella.graph.schema import schema

PATH = "/api/graphql"
JOBS = "query($first: Int!, $after: String) { jobs(first: $first, after: $after) { results { jobId } next } }"


def members(kind: str) -> str:
    """All fields of a type without arguments, and all of theirs."""
    found = []
    for name, field in schema.core.type_map[kind].fields.items():
        inner = get_named_type(field.type)
        if not field.args:
            found.append(f"{name} {{ {members(inner.name)} }}" if is_object_type(inner) else name)
    return " ".join(found)


CHILDREN = f"""
attempts(first: 5) {{ {members("JobAttempt")} }}
events(first: 10) {{ {members("EventEnvelope")} }}
dependencies(first: 10) {{ {members("Job")} }}
dependents(first: 10) {{ {members("Job")} }}
"""


def post(caller: Any, query: str, variables: dict[str, Any] | None = None, **body: Any) -> Any:
    return caller.post(PATH, {"query": query, "variables": variables or {}, **body})


def data(caller: Any, query: str, **variables: Any) -> Any:
    """The data of a query that has no errors."""
    response = post(caller, query, variables)
    assert response.status_code == 200, response.content
    assert "errors" not in response.json(), response.json()["errors"]
    return response.json()["data"]


def error(caller: Any, query: str, **variables: Any) -> Any:
    """The only error of a query, whose field is null."""
    response = post(caller, query, variables)
    assert response.status_code == 200, response.content
    found = response.json()
    assert set(found.get("data", {}).values()) <= {None}, found
    (only,) = found["errors"]
    return only
