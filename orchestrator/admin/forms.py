"""A list of strings as a person types it: one a line."""

from typing import Any, ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.forms import SimpleArrayField
from unfold.widgets import UnfoldAdminTextareaWidget


class LineListField(SimpleArrayField):
    """Empty lines and spaces around do not count."""

    column: ClassVar = ArrayField

    def __init__(self, base_field: Any, **kwargs: Any) -> None:
        super().__init__(base_field, delimiter="\n", widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}), **kwargs)

    @classmethod
    def of(cls, column: ArrayField) -> Self:
        help_text = f"{column.help_text} One a line." if column.help_text else "One a line."
        return cls(
            column.base_field.formfield(),
            required=not column.blank,
            label=column.verbose_name.capitalize(),
            help_text=help_text,
            initial=column.default if column.has_default() else None,
        )

    def to_python(self, value: Any) -> Any:
        if isinstance(value, str):
            value = "\n".join(line.strip() for line in value.splitlines() if line.strip())
        return super().to_python(value)
