"""Base of the pages of webhooks, notification rules and schedules: columns, and buttons that change and delete."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from unfold.decorators import action
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.core.cause import Cause


class ManagedRowAdmin(ReadOnlyAdmin):
    """Displays rows that clients change through the API; here every change is a button.

    Attributes:
        name_field: The column that names a row in messages.
        remove_text: Consequences of the deletion of a row.
    """

    name_field = "name"
    remove_text: str
    ordering = ["-id"]
    sortable_by = ()
    editor = formatting.value_column("updated_by", "Updated by")
    created = formatting.timestamp_column("created_at", "Created")
    updated = formatting.timestamp_column("updated_at", "Updated")

    def change_row(self, row: Any, changes: dict[str, Any], cause: Cause) -> Any:
        """Call the operation that changes a row."""
        raise NotImplementedError

    def delete_row(self, row: Any, cause: Cause) -> None:
        """Call the operation that deletes a row."""
        raise NotImplementedError

    def change(self, result: str, **changes: Any) -> Callable[[Any, Cause], str]:
        """Return what a button does that makes these changes. The message says the result of the row."""

        def act(row: Any, cause: Cause) -> str:
            self.change_row(row, changes, cause)
            return f"{self._name_of(row)} {result}"

        return act

    @action(
        description="Delete", url_path="remove", permissions=["operate"], icon="delete", variant=ActionVariant.DANGER
    )
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Delete the row."""

        def act(row: Any, cause: Cause) -> str:
            self.delete_row(row, cause)
            return f"{self._name_of(row)} deleted"

        back = formatting.changelist_url(self.model)
        return confirm_for_row(
            self, request, object_id, act, button="Delete", description=self.remove_text, back=back, danger=True
        )

    def _name_of(self, row: Any) -> str:
        return f"{capfirst(self.opts.verbose_name)} {getattr(row, self.name_field)}"
