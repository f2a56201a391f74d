"""Serializer fields that take what they say and nothing like it: "7" is not 7, true is not 1, 5 is not "5"."""

from collections.abc import Callable
from typing import Any

from rest_framework import serializers


class Text(serializers.CharField):
    """A JSON string, as it is: not trimmed, not made from a number."""

    def __init__(self, *, check: Callable[[str], str | None] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)
        self.check = check

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if self.check and (wrong := self.check(data)):
            raise serializers.ValidationError(wrong)
        return str(super().to_internal_value(data))


class Number(serializers.IntegerField):
    """A JSON number without a fraction, and not a boolean."""

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            self.fail("invalid")
        return int(super().to_internal_value(data))


class Decimal(serializers.FloatField):
    """A JSON number, and not a boolean."""

    def to_internal_value(self, data: Any) -> float:
        if type(data) not in {int, float}:
            self.fail("invalid")
        return float(super().to_internal_value(data))


class Flag(serializers.BooleanField):
    """A JSON boolean."""

    def to_internal_value(self, data: Any) -> bool:
        if type(data) is not bool:
            self.fail("invalid", input=data)
        return data


class StrictSerializer(serializers.Serializer):
    """Refuses fields that it does not know, with the field named."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            raise serializers.ValidationError({name: ["Unknown field."] for name in unknown}, code="unknown_field")
        return super().to_internal_value(data)
