"""Base of the pages of runners and hardware specs: permissions, and buttons that rename, archive and restore."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django import forms
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminTextInputWidget

from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.forms import ReasonForm
from orchestrator.core.cause import Cause
from runtime_jobs.resource_names import validate_resource_name

CHANGE_WORKERS = "workers.change_worker"
TITLE = "{button} {row.slug}"


def validated(text: str, validate: Callable[[str], str | None]) -> str:
    """Return a text of a form.

    Raises:
        ValidationError: It is not valid.
    """
    if problem := validate(text):
        raise forms.ValidationError(problem)
    return text


class RenameForm(ReasonForm):
    """Asks for a reason and for another name."""

    name = forms.CharField(max_length=64, widget=UnfoldAdminTextInputWidget, help_text="The slug stays.")
    field_order = ("name", "reason")

    def clean_name(self) -> str:
        return validated(self.cleaned_data["name"], validate_resource_name)


class WorkerRowAdmin(ReadOnlyAdmin):
    """Pages for everybody who may change workers, with a form for new rows alone.

    Attributes:
        details: The fields of the page of a row.
        requested: The fields of the form of a new one.
    """

    details: ClassVar[Sequence[str]]
    requested: ClassVar[Sequence[str]]

    def get_fields(self, _request: HttpRequest, obj: Model | None = None) -> Sequence[str]:
        return self.details if obj else self.requested

    def get_form(self, request: HttpRequest, obj: Model | None = None, *args: Any, **kwargs: Any) -> Any:
        return super().get_form(request, obj, *args, **kwargs | ({"form": forms.ModelForm} if obj else {}))

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm(CHANGE_WORKERS)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_view_permission(request, obj) or request.user.has_perm(CHANGE_WORKERS)

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(CHANGE_WORKERS)


class ArchivableAdmin(WorkerRowAdmin):
    """Renames, archives and restores rows.

    Attributes:
        archive_text: Consequences of the archive.
        restore_text: Consequences of the end of the archive.
    """

    archive_text: ClassVar[str]
    restore_text: ClassVar[str]

    def change_row(self, row: Any, cause: Cause, **changes: Any) -> Any:
        """Call the operation that changes a row."""
        raise NotImplementedError

    def name_of(self, row: Any) -> str:
        """Return the name that `Rename` offers to change."""
        name: str = row.name
        return name

    def change(self, result: str, **changes: Any) -> Callable[[Any, Cause], str]:
        """Return what a button does that makes these changes. The message says the result of the row."""

        def act(row: Any, cause: Cause) -> str:
            self.change_row(row, cause, **changes)
            return f"{row.slug}: {result}"

        return act

    @action(description="Rename", url_path="rename", permissions=["operate"], icon="edit")
    def rename(self, request: HttpRequest, object_id: str) -> HttpResponse:
        initial = {"name": self.name_of(self.existing_row(request, object_id))}
        form = RenameForm(request.POST or None, initial=initial)

        def act(row: Any, cause: Cause) -> str:
            return self.change("renamed", name=form.cleaned_data["name"])(row, cause)

        text = "Changes the name."
        return confirm_for_row(self, request, object_id, act, button="Rename", description=text, title=TITLE, form=form)

    @action(
        description="Archive",
        url_path="archive",
        permissions=["operate"],
        icon="archive",
        variant=ActionVariant.DANGER,
    )
    def archive(self, request: HttpRequest, object_id: str) -> HttpResponse:
        act, text = self.change("archived", archived=True), self.archive_text
        return confirm_for_row(
            self, request, object_id, act, button="Archive", description=text, title=TITLE, danger=True
        )

    @action(description="Restore", url_path="restore", permissions=["operate"], icon="unarchive")
    def restore(self, request: HttpRequest, object_id: str) -> HttpResponse:
        act, text = self.change("restored", archived=False), self.restore_text
        return confirm_for_row(self, request, object_id, act, button="Restore", description=text, title=TITLE)
