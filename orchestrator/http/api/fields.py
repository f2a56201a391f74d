"""Serializer fields and serializers without type coercion: "7" is not 7, true is not 1, 5 is not "5"."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.validators import ProhibitNullCharactersValidator, RegexValidator
from rest_framework import serializers
from rest_framework.fields import SkipField, empty, get_error_detail
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from orchestrator.core.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.api.compiled_serializers import (
    NotCompiled,
    Parser,
    compile_field,
    with_validators,
)
from orchestrator.http.observability.log_redaction import redacted
from runtime_jobs.control_characters import escape_controls


class StrictCharField(serializers.CharField):
    """A JSON string, not trimmed and not converted from a number.

    `pattern` is a regular expression for the whole string. `check` returns what is wrong with a value, or None.
    """

    def __init__(
        self, *, check: Callable[[str], str | None] | None = None, pattern: str | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)
        self.check = check
        self.char_validators = [rule for rule in self.validators if isinstance(rule, _CHAR_VALIDATORS)]
        self.validators = [rule for rule in self.validators if rule not in self.char_validators]
        if pattern:
            self.validators.append(RegexValidator(rf"^{pattern}\Z", f"Must match {pattern}"))

    def run_validators(self, value: Any) -> None:
        """Run the validators of single characters only if the text can contain such characters."""
        if not value.isascii() or "\0" in value:
            for rule in self.char_validators:
                _run_validator(rule, value)
        super().run_validators(value)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if self.check and (problem := self.check(data)):
            raise serializers.ValidationError(problem)
        return str(super().to_internal_value(data))


_CHAR_VALIDATORS = (ProhibitNullCharactersValidator, ProhibitSurrogateCharactersValidator)


def _run_validator(rule: Callable[[str], None], value: str) -> None:
    try:
        rule(value)
    except DjangoValidationError as error:
        raise serializers.ValidationError(get_error_detail(error)) from None


class SanitizedTextField(StrictCharField):
    """Text that people read in a terminal or on a page.

    Control characters are spelled out, and lease ids are replaced by their fingerprint.
    """

    def run_validation(self, data: Any = empty) -> Any:
        text = super().run_validation(data)
        if not isinstance(text, str):
            return text
        return escape_controls(redacted(text))


class StrictChoiceField(serializers.ChoiceField):
    """One of a closed list of strings."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.choices:
            raise serializers.ValidationError(f"Must be one of: {', '.join(self.choices)}.", code="invalid_choice")
        return data


class StrictIntegerField(serializers.IntegerField):
    """A JSON number without a fraction, and not a boolean."""

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            self.fail("invalid")
        return int(super().to_internal_value(data))


class StrictDecimalField(serializers.FloatField):
    """A JSON number, and not a boolean."""

    def to_internal_value(self, data: Any) -> float:
        if type(data) not in {int, float}:
            self.fail("invalid")
        return float(super().to_internal_value(data))


class StrictBooleanField(serializers.BooleanField):
    """A JSON boolean."""

    def to_internal_value(self, data: Any) -> bool:
        if type(data) is not bool:
            self.fail("invalid", input=data)
        return data


class TimestampField(serializers.DateTimeField):
    """RFC 3339 timestamp with an offset, at most a day in the future: a worker's clock may be wrong by hours."""

    def to_internal_value(self, data: Any) -> datetime:
        timestamp = parse_timestamp(data)
        if timestamp is None:
            raise serializers.ValidationError(INVALID_TIMESTAMP)
        if timestamp > datetime.now(UTC) + timedelta(days=1):
            raise serializers.ValidationError("Must not be more than a day in the future.")
        return timestamp


class StrictSerializer(serializers.Serializer):
    """Refuses unknown fields by name. Each field is read from the member of the same name."""

    @cached_property
    def _plan(self) -> dict[str, tuple[serializers.Field, Callable[[Any], Any] | None]]:
        """Return each field with its `validate_…` method, if there is one."""
        return {name: (field, getattr(self, f"validate_{name}", None)) for name, field in self.fields.items()}

    def to_internal_value(self, data: Any) -> Any:
        """Validate the fields as DRF does, without DRF's look-ups that have the same result for every body."""
        if not isinstance(data, dict):
            return super().to_internal_value(data)
        if unknown := sorted(data.keys() - self._plan.keys()):
            raise serializers.ValidationError({name: ["Unknown field."] for name in unknown}, code="unknown_field")
        validated: dict[str, Any] = {}
        errors: dict[str, Any] = {}
        for name, (field, check) in self._plan.items():
            try:
                value = field.run_validation(data.get(name, empty))
                validated[name] = value if check is None else check(value)
            except serializers.ValidationError as error:
                errors[name] = error.detail
            except DjangoValidationError as error:
                errors[name] = get_error_detail(error)
            except SkipField:
                pass
        if errors:
            raise serializers.ValidationError(errors)
        return validated


class ChangeSerializer(StrictSerializer):
    """Describes the fields to change, of which a body must have at least one."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError({"body": "At least one field is required."})
        return attrs


def _compile_text(field: StrictCharField) -> Parser:
    check, allow_blank = field.check, field.allow_blank

    def convert(value: Any) -> str:
        if type(value) is not str or not (value.isascii() or value.isprintable()) or "\0" in value:
            raise NotCompiled
        if check is not None and check(value):
            raise NotCompiled
        return value

    validated = with_validators(field, convert)
    if allow_blank:
        return lambda value: validated(value) if value != "" else ""

    def convert_filled(value: Any) -> Any:
        if value == "":
            raise NotCompiled
        return validated(value)

    return convert_filled


def _compile_choice(field: StrictChoiceField) -> Parser:
    choices = frozenset(field.choices)

    def convert(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise NotCompiled
        return value

    return with_validators(field, convert)


def _compile_exact(kind: type) -> Callable[[serializers.Field], Parser]:
    def compile_field(field: serializers.Field) -> Parser:
        def convert(value: Any) -> Any:
            if type(value) is not kind:
                raise NotCompiled
            return value

        return with_validators(field, convert)

    return compile_field


_COMPILERS: dict[type, Callable[[Any], Parser]] = {
    StrictCharField: _compile_text,
    StrictChoiceField: _compile_choice,
    StrictIntegerField: _compile_exact(int),
    StrictBooleanField: _compile_exact(bool),
}


@cache
def _shared_serializer(serializer: type[StrictSerializer]) -> StrictSerializer:
    return serializer()


@cache
def _compiled(serializer: type[StrictSerializer]) -> Parser:
    return compile_field(_shared_serializer(serializer), _COMPILERS, strict=StrictSerializer)


def parse(serializer: type[StrictSerializer], data: Any) -> Any:
    """Return the validated data.

    Most bodies are valid, and are parsed by the compiled form of the serializer. The serializer itself parses all
    others, and words their errors. `tests/orchestrator/http/api/test_compiled_serializers.py` compares both.

    All threads share one instance per class. Without `data` of its own it has no state, and building an instance takes
    ten times as long as validating with it. `tests/orchestrator/http/api/test_fields.py` parses from 8 threads at once.

    Args:
        serializer: The class that describes the body.
        data: The body.

    Raises:
        ValidationError: The body is invalid.
    """
    try:
        return _compiled(serializer)(data)
    except NotCompiled:
        return _shared_serializer(serializer).run_validation(data)
