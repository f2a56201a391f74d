"""The git repositories of projects: their origins and mirrors. `manage.py repository add` adds one."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, confirm_for_row, render_confirm
from orchestrator.admin.forms import ReasonForm
from orchestrator.core.cause import Cause
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.operations import start_housekeeping_task
from orchestrator.repositories.operations import MAX_CREDENTIAL_LENGTH, change_repository, remove_repository
from orchestrator.repositories.tasks import MIRROR
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.models import Project, Repository
from runtime_jobs.models.repositories import MAX_ORIGIN_LENGTH


class RepositoryForm(ReasonForm):
    """Asks for the changes of a repository. The stored credential is never a value of the form."""

    origin = forms.CharField(
        max_length=MAX_ORIGIN_LENGTH,
        widget=UnfoldAdminTextInputWidget,
        help_text="https://host/owner/name, or the path of a bare repository. A new origin loses the credential.",
    )
    is_private = forms.BooleanField(
        label="Private", required=False, widget=UnfoldBooleanSwitchWidget, help_text="Git asks clients for credentials."
    )
    credential = forms.CharField(
        label="New credential of the origin",
        required=False,
        max_length=MAX_CREDENTIAL_LENGTH,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="user:password, or a token. Empty: no change.",
    )
    clear_credential = forms.BooleanField(
        label="Delete the stored credential", required=False, widget=UnfoldBooleanSwitchWidget
    )

    def clean(self) -> dict[str, Any]:
        values = dict(self.cleaned_data)
        if values.get("credential") and values.get("clear_credential"):
            self.add_error("clear_credential", "Enter a new credential or delete the stored one, not both.")
        return values

    def changes(self) -> dict[str, Any]:
        """Return the arguments of `change_repository` that the form has."""
        values = self.cleaned_data
        credential = "" if values["clear_credential"] else values["credential"] or None
        return {"origin": values["origin"], "is_private": values["is_private"], "credential": credential}


@admin.register(Repository)
class RepositoryAdmin(ReadOnlyAdmin):
    """Displays repositories. The credential of an origin is never shown."""

    list_display = ["name_code", "visibility", "project_link", "origin", "mirrored", "task_link"]
    list_display_links = ["name_code"]
    list_select_related = ["project__organization"]
    ordering = ["owner", "name"]
    sortable_by = ()
    search_fields = ["owner", "name"]
    search_help_text = "Owner or name"
    fields = ["name_code", "number", "visibility", "project_link", "origin", "credential", "mirrored", "task_link"]
    fields += ["error", "created"]
    actions_detail = ["update_mirror", "edit", "remove"]
    number = formatting.value_column("id", "Number")
    mirrored = formatting.timestamp_column("mirrored_at", "Mirrored")
    created = formatting.timestamp_column("created_at", "Created")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Repository]:
        return super().get_queryset(request).defer("sealed_credential")

    @display(description="Repository")
    def name_code(self, repository: Repository) -> SafeString:
        return formatting.code(repository.full_name)

    @display(description="Visibility", label={"private": "default", "public": "info"})
    def visibility(self, repository: Repository) -> str:
        return "private" if repository.is_private else "public"

    @display(description="Project")
    def project_link(self, repository: Repository) -> SafeString:
        return formatting.link(formatting.change_url(Project, repository.project_id), repository.project)

    @display(description="Credential of the origin")
    def credential(self, repository: Repository) -> str:
        return "none" if Repository.objects.filter(pk=repository.pk, sealed_credential=None).exists() else "set"

    @display(description="Task")
    def task_link(self, repository: Repository) -> SafeString:
        address = formatting.changelist_url(HousekeepingTask, kind=MIRROR, subject=repository.pk)
        return formatting.link(address, MIRROR)

    @display(description="Last error")
    def error(self, repository: Repository) -> str:
        task = HousekeepingTask.objects.filter(kind=MIRROR, subject=str(repository.pk)).first()
        return (task.last_error if task else "") or formatting.NO_VALUE

    @action(description="Update mirror", url_path="update_mirror", permissions=["operate"], icon="sync")
    def update_mirror(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Let the mirror be updated at once."""

        def act(repository: Repository, cause: Cause) -> str:
            start_housekeeping_task(kind=MIRROR, subject=str(repository.pk), cause=cause)
            return f"{repository.full_name}: the update was requested"

        text = "A housekeeping process fetches the branches and tags of the origin at once."
        title = "Update the mirror of {row.full_name}"
        return confirm_for_row(self, request, object_id, act, button="Update mirror", description=text, title=title)

    @action(description="Change", url_path="edit", permissions=["operate"], icon="edit")
    def edit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Change the origin, the credential or the visibility."""
        repository = self.existing_row(request, object_id)
        initial = {"origin": repository.origin, "is_private": repository.is_private}
        form = RepositoryForm(request.POST or None, initial=initial)
        page = ConfirmPage(
            f"Change {repository.full_name}",
            "Housekeeping updates the mirror from a new origin at once. Commits that the mirror already has remain.",
            "Change",
            formatting.change_url(Repository, repository.pk),
        )

        if request.method == "POST" and form.is_valid():
            try:
                change_repository(repository_id=repository.pk, **form.changes(), cause=cause_of(request, form))
            except Invalid as error:
                for name, texts in error.errors.items():
                    form.add_error(name, texts)
            except LifecycleError as refusal:
                messages.warning(request, refusal.message)
                return HttpResponseRedirect(page.back)
            else:
                messages.success(request, f"{repository.full_name} was changed.")
                return HttpResponseRedirect(page.back)
        return render_confirm(self, request, page, form)

    @action(description="Remove", url_path="remove", permissions=["operate"], icon="delete")
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Remove a repository that has no workflow runs."""

        def act(repository: Repository, cause: Cause) -> str:
            remove_repository(repository_id=repository.pk, cause=cause)
            return f"{repository.full_name} was removed"

        return confirm_for_row(
            self,
            request,
            object_id,
            act,
            button="Remove",
            description="Its mirror, secrets, variables and schedules are deleted. "
            "A repository with workflow runs is not removed.",
            title="Remove {row.full_name}",
            back=formatting.changelist_url(Repository),
            danger=True,
        )
