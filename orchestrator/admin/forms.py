"""Form fields and forms that several pages share."""

from typing import Any, ClassVar, Self

from django import forms
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.forms import SimpleArrayField
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from orchestrator.http.observability.log_redaction import redacted


class LineListField(SimpleArrayField):
    """Edits a list of strings as text with one entry per line. Ignores empty lines and surrounding blanks."""

    column: ClassVar = ArrayField

    def __init__(self, base_field: Any, **kwargs: Any) -> None:
        super().__init__(base_field, delimiter="\n", widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}), **kwargs)

    @classmethod
    def of(cls, column: ArrayField) -> Self:
        """Build the form field of an array column."""
        help_text = f"{column.help_text} One per line." if column.help_text else "One per line."
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


class ReasonForm(forms.Form):
    """Asks for the reason of an action. The audit log stores the reason."""

    reason = forms.CharField(
        max_length=500,
        widget=UnfoldAdminTextInputWidget(attrs={"autofocus": True}),
        help_text="Stored in the audit log.",
        error_messages={"required": "Enter a reason. The audit log stores it."},
    )

    def clean_reason(self) -> str:
        """Redact tokens and lease ids: the audit log keeps the reason, and every operator can read it."""
        return redacted(self.cleaned_data["reason"])


class NoteForm(ReasonForm):
    """Asks for a reason and for a note that the list of workers shows."""

    note = forms.CharField(
        max_length=200,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        required=False,
        help_text="Shown beside the worker.",
    )
