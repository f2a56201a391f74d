"""JSON Schemas of tenants for payloads: which ones are accepted, and how a payload is checked at a bounded cost.

A schema is input of a tenant and runs in this process. So regular expressions, references to other documents, and
keywords whose cost is not linear are refused, and each check has a budget of comparisons.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_COMPARISONS: Final = 50_000  # at most half a second
CHARACTERS_PER_COMPARISON: Final = 64
MAX_ERRORS: Final = 5
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MAX_MESSAGE_LENGTH: Final = 200

# Keywords that a schema may have: those whose value is one schema, a list of schemas, schemas by name, or other values.
_ONE: Final = frozenset({"items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"})
_LISTS: Final = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
_NAMED: Final = frozenset({"$defs", "properties", "dependentSchemas"})
_VALUES: Final = frozenset(
    {
        *("$schema", "$ref", "$comment", "title", "description", "default", "examples", "deprecated"),
        *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
        *("minProperties", "maxProperties", "required", "dependentRequired"),
    }
)
KEYWORDS: Final = sorted(_ONE | _LISTS | _NAMED | _VALUES)


class _BudgetSpent(Exception):
    """The check of a payload has made as many comparisons as it may make."""


def schema_error(schema: Any) -> str | None:
    """Return why a schema is not accepted, or None."""
    if not isinstance(schema, dict):
        return "Must be a JSON object."
    size = len(orjson.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        return f"The schema has {size} bytes; at most {MAX_SCHEMA_BYTES} bytes are allowed."
    if schema.get("$schema", DIALECT) != DIALECT:
        return f"$schema: must be {DIALECT}."
    found = next(_problems(schema, schema, "#"), None)
    if found is not None:
        return found
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{_path(error)}: {error.message}"[:MAX_MESSAGE_LENGTH]
    return None


def _problems(schema: Any, document: dict[str, Any], path: str) -> Iterator[str]:
    """Yield what is wrong with the keywords of a schema and of those in it."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        place = f"{path}/{keyword}"[:MAX_MESSAGE_LENGTH]
        if keyword not in KEYWORDS:
            yield f"{place}: this keyword is not allowed. Allowed are: {', '.join(KEYWORDS)}."
        if keyword == "$ref" and (problem := _reference_problem(value, document)) is not None:
            yield f"{place}: {problem}"
        for name, inner in _schemas_in(keyword, value):
            yield from _problems(inner, document, f"{place}{name}")


def _schemas_in(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in the value of a keyword, each with its path there."""
    if keyword in _ONE:
        yield "", value
    elif keyword in _LISTS and isinstance(value, list):
        yield from ((f"/{number}", inner) for number, inner in enumerate(value))
    elif keyword in _NAMED and isinstance(value, dict):
        yield from ((f"/{name}", inner) for name, inner in value.items())


def _reference_problem(reference: Any, document: dict[str, Any]) -> str | None:
    """Return what is wrong with a reference. Only a definition of the same schema may be named."""
    prefix = "#/$defs/"
    definitions = document.get("$defs")
    name = reference.removeprefix(prefix) if isinstance(reference, str) else ""
    if name and reference != name and isinstance(definitions, dict) and name in definitions:
        return None
    return "must be `#/$defs/` with the name of a definition in this schema."


def payload_errors(schema: dict[str, Any], payload: Mapping[str, Any]) -> list[str]:
    """Return how a payload violates a schema, at most `MAX_ERRORS` sentences.

    Args:
        schema: A schema that `schema_error` has accepted.
        payload: The payload.
    """
    validator: Any = _validator_class(_Budget())(schema, registry=Registry())
    try:
        errors = list(islice(validator.iter_errors(payload), MAX_ERRORS))
    except (_BudgetSpent, RecursionError):
        return [f"#: the check against the schema of the tenant needs more than {MAX_COMPARISONS} comparisons."]
    return [f"{_path(error)}: {error.message}"[:MAX_MESSAGE_LENGTH] for error in errors]


class _Budget:
    """The comparisons that one check may still make."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def take(self, comparisons: int) -> None:
        """Count comparisons.

        Raises:
            _BudgetSpent: There are not so many left.
        """
        self._left -= comparisons
        if self._left < 0:
            raise _BudgetSpent


def _validator_class(budget: _Budget) -> Any:
    """Return the validator of the dialect whose keywords count what they compare."""
    counted = {name: _counted(check, budget) for name, check in Draft202012Validator.VALIDATORS.items()}
    return extend(Draft202012Validator, validators=counted)


def _counted(check: Callable[..., Iterator[ValidationError] | None], budget: _Budget) -> Callable[..., Any]:
    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        budget.take(1 + _length(value) + _length(instance))
        for error in check(validator, value, instance, schema) or ():
            budget.take(len(error.message) // CHARACTERS_PER_COMPARISON)  # it quotes what it refuses
            yield error

    return run


def _length(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _path(error: ValidationError | SchemaError) -> str:
    return "/".join(["#", *map(str, error.absolute_path)])
