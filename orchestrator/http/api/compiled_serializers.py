"""Compiles a serializer into a function that accepts valid bodies only, at a fifth of the serializer's cost.

The rules have one source: the function is built from the fields of the serializer and calls their own checks and
validators. It never reports an error. A body that it does not accept raises `NotCompiled`, and the caller parses the
body with the serializer itself, which words the error. A field of a class that is not known here validates itself.
"""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.validators import MaxLengthValidator, RegexValidator
from rest_framework import serializers
from rest_framework.fields import SkipField, empty

Parser = Callable[[Any], Any]


class NotCompiled(Exception):
    """The body is invalid, or only the serializer can decide whether it is valid."""


def compile_field(
    field: serializers.Field, compilers: dict[type, Callable[[Any], Parser]], *, strict: type[serializers.Serializer]
) -> Parser:
    """Return a function that returns what `field.run_validation` returns for a valid value.

    Args:
        field: A field, or a serializer without data. It is not changed.
        compilers: For each class of field, the function that compiles a value of it. Subclasses are not meant.
        strict: The class of serializers that are compiled, as far as they have no further rules.

    Returns:
        The function. It raises NotCompiled for every other value, and for some valid ones.
    """
    return _Compiler(compilers, strict).of_field(field)


def guarded(act: Parser) -> Parser:
    """Return a function that raises NotCompiled where `act` raises an error of validation."""

    def run(value: Any) -> Any:
        try:
            return act(value)
        except (serializers.ValidationError, DjangoValidationError, SkipField):
            raise NotCompiled from None

    return run


def with_validators(field: serializers.Field, convert: Parser) -> Parser:
    """Return a function that converts a value and then runs the validators of the field."""
    checks = [_check_of(validator) for validator in field.validators]
    if not checks:
        return convert

    def run(value: Any) -> Any:
        value = convert(value)
        for is_valid in checks:
            if not is_valid(value):
                raise NotCompiled
        return value

    return run


def _check_of(validator: Any) -> Callable[[Any], bool]:
    """Return a function that reports whether a validator accepts a value."""
    if type(validator) is MaxLengthValidator and isinstance(validator.limit_value, int):
        limit = validator.limit_value
        return lambda value: len(value) <= limit
    if type(validator) is RegexValidator and not validator.inverse_match:
        search = validator.regex.search  # type: ignore[union-attr] # a string becomes a pattern when it is created
        return lambda value: search(value) is not None

    def accepts(value: Any) -> bool:
        try:
            validator(value)
        except (serializers.ValidationError, DjangoValidationError):
            return False
        return True

    return accepts


class _Compiler:
    """Compiles a serializer with its fields."""

    def __init__(self, compilers: dict[type, Callable[[Any], Parser]], strict: type[serializers.Serializer]) -> None:
        self._compilers, self._strict = compilers, strict

    def of_field(self, field: Any) -> Parser:
        """Return the function for the value of a field that is present."""
        if any(getattr(rule, "requires_context", False) for rule in field.validators):
            return guarded(field.run_validation)
        if (compiler := self._compilers.get(type(field))) is not None:
            parser = compiler(field)
        elif type(field) is serializers.ListField:
            parser = self._of_list(field)
        elif type(field).run_validation is serializers.Field.run_validation and isinstance(
            field, serializers.DictField
        ):
            parser = self._of_dict(field)
        elif isinstance(field, serializers.Serializer) and _is_strict(field, self._strict):
            parser = self._of_serializer(field)
        else:
            return guarded(field.run_validation)
        return _with_null(field, parser)

    def _of_list(self, field: serializers.ListField) -> Parser:
        child, allow_empty = self.of_field(field.child), field.allow_empty

        def convert(value: Any) -> list[Any]:
            if type(value) is not list or not (value or allow_empty):
                raise NotCompiled
            return [child(item) for item in value]

        return with_validators(field, convert)

    def _of_dict(self, field: serializers.DictField) -> Parser:
        child, allow_empty = self.of_field(field.child), field.allow_empty

        def convert(value: Any) -> dict[str, Any]:
            if type(value) is not dict or not (value or allow_empty):
                raise NotCompiled
            return {str(key): child(item) for key, item in value.items()}

        return with_validators(field, convert)

    def _of_serializer(self, serializer: Any) -> Parser:
        """Return the function for an object, with the fields in the order of the serializer."""
        plan = [
            (name, self.of_field(field), _missing(field), guarded(check) if check else None)
            for name, field in serializer.fields.items()
            for check in [getattr(serializer, f"validate_{name}", None)]
        ]
        names = frozenset(serializer.fields)
        has_own_rule = type(serializer).validate is not serializers.Serializer.validate
        rule = guarded(serializer.validate) if has_own_rule else None

        def convert(value: Any) -> Any:
            if type(value) is not dict or not value.keys() <= names:
                raise NotCompiled
            validated: dict[str, Any] = {}
            for name, parse, missing, check in plan:
                item = value.get(name, empty)
                found = missing() if item is empty else parse(item)
                if found is empty:
                    continue
                validated[name] = found if check is None else check(found)
            return validated if rule is None else rule(validated)

        return with_validators(serializer, convert)


def _is_strict(serializer: serializers.Serializer, strict: type[serializers.Serializer]) -> bool:
    """Report whether a serializer validates its fields as the strict class does, without further rules."""
    own = type(serializer)
    return (
        isinstance(serializer, strict)
        and own.run_validation is serializers.Serializer.run_validation
        and own.to_internal_value is strict.to_internal_value
        and not any(field.read_only for field in serializer.fields.values())
    )


def _has_no_own_rule(field: serializers.Field, kind: type[serializers.Field]) -> bool:
    """Report whether a field of a subclass validates as its base class does."""
    names = ("run_validation", "to_internal_value", "run_child_validation", "run_validators", "validate_empty_values")
    return all(getattr(type(field), name) is getattr(kind, name) for name in names)


def _with_null(field: serializers.Field, parser: Parser) -> Parser:
    if not field.allow_null:
        return lambda value: parser(value) if value is not None else _refuse()
    return lambda value: parser(value) if value is not None else None


def _refuse() -> Any:
    raise NotCompiled


def _missing(field: serializers.Field) -> Callable[[], Any]:
    """Return a function that returns the value of a field that is absent; `empty` for no value."""
    if field.required:
        return _refuse
    default = field.default
    if default is empty:
        return lambda: empty
    if callable(default):
        return field.get_default if getattr(default, "requires_context", False) else default
    return lambda: default
