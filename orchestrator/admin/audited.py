"""Nouns that people may edit: every change leaves an operator event with before and after, in its transaction."""

from collections.abc import Iterable
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.forms import LineListField
from orchestrator.http.client_ip import client_address
from orchestrator.services.operator_actions import record_operator_event
from runtime_jobs.models import OperatorEvent

_encoder = DjangoJSONEncoder()


def as_json(value: Any) -> Any:
    """A column's value as an event may carry it."""
    if isinstance(value, models.Model):
        return str(value)
    if isinstance(value, models.QuerySet | list | tuple):
        return [as_json(item) for item in value]
    return value if isinstance(value, str | int | bool | float | None) else _encoder.default(value)


class AuditedAdmin(BaseAdmin):
    """`noun` names it in events; `fixed` columns are set when it is made and never change."""

    noun: str
    fixed: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()  # columns whose values no event may carry

    def target_of(self, row: Any) -> str:
        return f"{self.noun}:{row}"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any] | tuple[Any, ...]:
        return [*super().get_readonly_fields(request, obj), *(self.fixed if obj else ())]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Jobs keep copies of these names: a new row of an old name would inherit the old one's jobs."""
        return False

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if isinstance(db_field, LineListField.column):
            return LineListField.of(db_field)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    # --- the trail: Django calls save_model, then save_related, within one transaction --------------------------------

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write only what was edited: the row may have moved on since the form was shown."""
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
        self.record(request, "changed" if change else "created", form.instance, form, names)

    def record(self, request: HttpRequest, done: str, row: Any, form: Any, names: Iterable[str]) -> None:
        record_operator_event(
            f"{self.noun}.{done}",
            target=self.target_of(row)[:200],
            actor=actor_of(request),
            before=getattr(form, "before", None),
            after=self._values(row, names),
            source_address=client_address(request),
        )

    def _values(self, row: Any, names: Iterable[str]) -> dict[str, Any]:
        columns = {field.name: field for field in (*self.opts.concrete_fields, *self.opts.many_to_many)}
        return {
            name: "(not shown)" if name in self.unseen else self._value(row, columns[name])
            for name in names
            if name in columns
        }

    def _value(self, row: Any, column: Any) -> Any:
        value = getattr(row, column.name)
        return as_json(list(value.all()) if column.many_to_many else value)

    # --- its history is the trail, not Django's own log ---------------------------------------------------------------

    def log_addition(self, *_: Any, **__: Any) -> Any:
        """Not twice: `save_related` has written the event."""

    def log_change(self, *_: Any, **__: Any) -> Any:
        """As above."""

    def log_deletions(self, *_: Any, **__: Any) -> Any:
        """As above."""

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002 Django's signature
        row = self.get_object(request, object_id)
        target = self.target_of(row) if row else ""
        return HttpResponseRedirect(formatting.changelist_url(OperatorEvent, target=target))

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        shown_too = {"show_history": True, "show_save_and_add_another": False}
        return super().changeform_view(request, object_id, form_url, shown_too | (extra_context or {}))
