"""Serializer fields that take what they say and nothing like it: "7" is not 7, true is not 1, 5 is not "5"."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.validators import ProhibitNullCharactersValidator, RegexValidator
from rest_framework import serializers
from rest_framework.fields import SkipField, empty, get_error_detail
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from orchestrator.http.api.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.observability.log_redaction import redacted
from runtime_jobs.control_characters import escape_controls


class StrictCharField(serializers.CharField):
    """A JSON string, as it is: not trimmed, not made from a number. `pattern` is a regular expression for all of it."""

    def __init__(
        self, *, check: Callable[[str], str | None] | None = None, pattern: str | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)
        self.check = check
        self.letters = [rule for rule in self.validators if isinstance(rule, _LETTERS)]
        self.validators = [rule for rule in self.validators if rule not in self.letters]
        if pattern:
            self.validators.append(RegexValidator(rf"^{pattern}\Z", f"It must match {pattern}"))

    def run_validators(self, value: Any) -> None:
        """The rules that look at each letter are asked only where they could find something."""
        if not value.isascii() or "\0" in value:
            for rule in self.letters:
                _asked(rule, value)
        super().run_validators(value)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if self.check and (wrong := self.check(data)):
            raise serializers.ValidationError(wrong)
        return str(super().to_internal_value(data))


_LETTERS = (ProhibitNullCharactersValidator, ProhibitSurrogateCharactersValidator)


def _asked(rule: Callable[[str], None], value: str) -> None:
    try:
        rule(value)
    except DjangoValidationError as error:
        raise serializers.ValidationError(get_error_detail(error)) from None


class SanitizedTextField(StrictCharField):
    """Words for people, who read them in a terminal or a page: control characters are spelled out, capabilities are
    shown by their fingerprint."""

    def run_validation(self, data: Any = empty) -> Any:
        text = super().run_validation(data)
        if not isinstance(text, str):
            return text
        return escape_controls(redacted(text))


class StrictChoiceField(serializers.ChoiceField):
    """One of a closed list of strings."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.choices:
            raise serializers.ValidationError(f"One of: {', '.join(self.choices)}.", code="invalid_choice")
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
    """RFC 3339, with its offset, and not from the future: a worker's clock may be wrong by hours, not by days."""

    def to_internal_value(self, data: Any) -> datetime:
        found = parse_timestamp(data)
        if found is None:
            raise serializers.ValidationError(INVALID_TIMESTAMP)
        if found > datetime.now(UTC) + timedelta(days=1):
            raise serializers.ValidationError("This time has not come yet.")
        return found


class StrictSerializer(serializers.Serializer):
    """Refuses fields that it does not know, with the field named. A field here is read from the member of its name."""

    @cached_property
    def _plan(self) -> dict[str, tuple[serializers.Field, Callable[[Any], Any] | None]]:
        """Each field, and what this serializer checks of it besides."""
        return {name: (field, getattr(self, f"validate_{name}", None)) for name, field in self.fields.items()}

    def to_internal_value(self, data: Any) -> Any:
        """As the framework's own, which asks at every reading what never changes."""
        if not isinstance(data, dict):
            return super().to_internal_value(data)
        if unknown := sorted(data.keys() - self._plan.keys()):
            raise serializers.ValidationError({name: ["Unknown field."] for name in unknown}, code="unknown_field")
        found: dict[str, Any] = {}
        errors: dict[str, Any] = {}
        for name, (field, check) in self._plan.items():
            try:
                value = field.run_validation(data.get(name, empty))
                found[name] = value if check is None else check(value)
            except serializers.ValidationError as error:
                errors[name] = error.detail
            except DjangoValidationError as error:
                errors[name] = get_error_detail(error)
            except SkipField:
                pass
        if errors:
            raise serializers.ValidationError(errors)
        return found


@cache
def _reader(shape: type[StrictSerializer]) -> StrictSerializer:
    return shape()


def parse(shape: type[StrictSerializer], data: Any) -> Any:
    """What was sent, in this shape. Raises ValidationError.

    One serializer reads everything: without data of its own it has no state, and making one costs ten times what
    reading with it does."""
    return _reader(shape).run_validation(data)
