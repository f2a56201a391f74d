"""Pages with edit forms: every change writes an operator event with before and after, in the same transaction."""

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest

from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import cause_of
from orchestrator.admin.forms import LineListField
from orchestrator.core.operator_events import record_operator_event, to_json_value


class AuditedAdmin(BaseAdmin):
    """Records every change as an operator event.

    Attributes:
        audit_name: Name of the resource in events (`pool.changed`, target `pool:…`).
        immutable_fields: Columns that are set at creation and never change.
        redacted_fields: Columns whose values no event may contain.
    """

    audit_name: str
    immutable_fields: tuple[str, ...] = ()
    redacted_fields: tuple[str, ...] = ()

    def target_of(self, row: Any) -> str:
        """Return the name of the row in events."""
        return f"{self.audit_name}:{row}"

    def org_slug_of(self, row: Any) -> str | None:  # noqa: ARG002 a hook
        """Return the organization that the row concerns, whose clients may read its events, or None."""
        return None

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any] | tuple[Any, ...]:
        return [*super().get_readonly_fields(request, obj), *(self.immutable_fields if obj else ())]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Refuse deletion: jobs keep copies of these names, and a new row of an old name would inherit its jobs."""
        return False

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if isinstance(db_field, LineListField.column):
            return LineListField.of(db_field)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    # --- events: Django calls save_model, then save_related, in one transaction ---------------------------------------

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write only edited columns: other columns may have changed since the form was rendered."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        stored = self.model.objects.select_for_update(of=("self",), no_key=True).get(pk=obj.pk)
        form.before = self._values(stored, form.changed_data)
        plain = {field.name for field in self.opts.concrete_fields}
        obj.save(update_fields=[name for name in form.changed_data if name in plain])

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        if change and not form.changed_data:
            return
        names = form.changed_data if change else form.cleaned_data
        self._record(request, "changed" if change else "created", form, names)

    def _record(self, request: HttpRequest, operation: str, form: Any, names: Iterable[str]) -> None:
        record_operator_event(
            f"{self.audit_name}.{operation}",
            target=self.target_of(form.instance)[:200],
            cause=cause_of(request),
            before=getattr(form, "before", None),
            after=self._values(form.instance, names),
            org_slug=self.org_slug_of(form.instance),
        )

    def _values(self, row: Any, names: Iterable[str]) -> dict[str, Any]:
        columns = {field.name: field for field in (*self.opts.concrete_fields, *self.opts.many_to_many)}
        return {
            name: "(redacted)" if name in self.redacted_fields else self._value(row, columns[name])
            for name in names
            if name in columns
        }

    def _value(self, row: Any, column: Any) -> Any:
        value = getattr(row, column.name)
        return to_json_value(list(value.all()) if column.many_to_many else value)

    # --- history: the operator events, not Django's own log -----------------------------------------------------------

    def log_addition(self, *_: Any, **__: Any) -> Any:
        """Write no second entry: `save_related` has written the event."""

    def log_change(self, *_: Any, **__: Any) -> Any:
        """Write no second entry: `save_related` has written the event."""

    def log_deletions(self, *_: Any, **__: Any) -> Any:
        """Write no second entry: a page that allows deletion writes the event itself."""

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        options = {"show_history": True, "show_save_and_add_another": False}
        return super().changeform_view(request, object_id, form_url, options | (extra_context or {}))
