"""The pages of hardware specs: creation, name, fallback, archive, deletion."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldBooleanSwitchWidget

from orchestrator.admin import formatting
from orchestrator.admin.confirm import cause_of, confirm_for_row
from orchestrator.admin.filters import choice_filter
from orchestrator.admin.token_pages import CreateByOperation
from orchestrator.admin.workers.archivable import TITLE, ArchivableAdmin, validated
from orchestrator.core.cause import Cause
from orchestrator.services import hardware_specs
from runtime_jobs.resource_names import validate_resource_name, validate_slug
from workers.models import HardwareSpec
from workers.registry.models import SpecArchitecture, SpecOS

HARDWARE = ("os", "architecture", "sandbox", "cpu", "memory", "disk", "network")
GIBIBYTE = 1 << 30


class NewSpecForm(forms.ModelForm):
    """Asks for the values of a new spec. The hardware never changes."""

    fallback = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Jobs that name no spec get this one instead of the current fallback.",
    )

    class Meta:
        model = HardwareSpec
        fields = ["name", "slug", *HARDWARE]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["slug"].required = False
        self.fields["slug"].help_text = "Unique name in URLs. Empty: made from the name."

    def clean_name(self) -> str:
        return validated(self.cleaned_data["name"], validate_resource_name)

    def clean_slug(self) -> str:
        slug: str = self.cleaned_data["slug"]
        return validated(slug, validate_slug) if slug else ""

    def clean_sandbox(self) -> str | None:
        return self.cleaned_data["sandbox"] or None


@admin.register(HardwareSpec)
class HardwareSpecAdmin(CreateByOperation, ArchivableAdmin):
    """Displays specs; every change is a button with a reason."""

    form = NewSpecForm
    add_description = "Creates a hardware spec. Jobs ask for it, and runners that are associated with it execute them."
    list_display = ["slug", "name", "state_badge", "hardware", "sandbox_text", "runner_list"]
    list_filter = [
        choice_filter("architecture", "architecture", SpecArchitecture.choices),
        choice_filter("operating system", "os", SpecOS.choices),
    ]
    search_fields = ["slug__startswith", "name__startswith"]
    search_help_text = "Slug or name (prefix)"
    ordering = ["slug"]
    actions_detail = ["rename", "set_fallback", "clear_fallback", "archive", "restore", "remove"]
    details = [
        *("name", "slug", "uuid_text", "state_badge", "hardware", "sandbox_text", "network", "runner_list"),
        *("created", "modified", "archived"),
    ]
    requested = ["name", "slug", *HARDWARE, "fallback"]
    archive_text = "No new job can ask for the spec, and it is no fallback. Jobs that wait are still executed."
    restore_text = "Jobs can ask for the spec again. It does not become the fallback again."
    created = formatting.timestamp_column("created_at", "Created")
    modified = formatting.timestamp_column("modified_at", "Modified")
    archived = formatting.timestamp_column("archived_at", "Archived")
    sandbox_text = formatting.value_column("sandbox", "Sandbox")

    def get_queryset(self, request: HttpRequest) -> QuerySet[HardwareSpec]:
        return super().get_queryset(request).prefetch_related("workers")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        spec = self.get_object(request, object_id)
        if spec is None:
            return []
        is_archived, is_fallback = spec.archived_at is not None, spec.fallback_at is not None
        hidden = {
            "archive" if is_archived else "restore",
            "set-fallback" if is_archived or is_fallback else "",
            "" if is_fallback else "clear-fallback",
        }
        return [button for button in super().get_actions_detail(request, object_id) if button.path not in hidden]

    def change_row(self, row: HardwareSpec, cause: Cause, **changes: Any) -> HardwareSpec:
        return hardware_specs.change_spec(spec_uuid=row.uuid, **changes, cause=cause)

    def target_of(self, row: Any) -> str:
        return str(row.event_target)

    def respond_to_form(self, request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
        spec = hardware_specs.create_spec(
            name=values["name"],
            slug=values["slug"] or None,
            hardware={name: values[name] for name in HARDWARE},
            fallback=values["fallback"],
            cause=cause_of(request),
        )
        messages.success(request, f"{spec.slug}: created.")
        return HttpResponseRedirect(formatting.change_url(HardwareSpec, spec.pk))

    # --- buttons ------------------------------------------------------------------------------------------------------

    @action(description="Make fallback", url_path="set-fallback", permissions=["operate"], icon="star")
    def set_fallback(self, request: HttpRequest, object_id: str) -> HttpResponse:
        act = self.change("is the fallback", fallback=True)
        text = "Jobs that name no spec get this one instead of the current fallback."
        title = "Make {row.slug} the fallback"
        return confirm_for_row(self, request, object_id, act, button="Make fallback", description=text, title=title)

    @action(description="End fallback", url_path="clear-fallback", permissions=["operate"], icon="star_half")
    def clear_fallback(self, request: HttpRequest, object_id: str) -> HttpResponse:
        act = self.change("is no fallback", fallback=False)
        text = "Without a fallback, jobs that name no spec are refused."
        title = "End the fallback {row.slug}"
        return confirm_for_row(self, request, object_id, act, button="End fallback", description=text, title=title)

    @action(
        description="Delete", url_path="remove", permissions=["operate"], icon="delete", variant=ActionVariant.DANGER
    )
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:

        def act(spec: HardwareSpec, cause: Cause) -> str:
            hardware_specs.delete_spec(spec_uuid=spec.uuid, cause=cause)
            return f"{spec.slug}: deleted"

        text = "Only a spec to which no runner and no job refers can be deleted."
        response = confirm_for_row(
            self, request, object_id, act, button="Delete", description=text, title=TITLE, danger=True
        )
        is_deleted = not HardwareSpec.objects.filter(pk=object_id).exists()
        return HttpResponseRedirect(formatting.changelist_url(HardwareSpec)) if is_deleted else response

    # --- columns ------------------------------------------------------------------------------------------------------

    @display(description="State", label={"active": "success", "fallback": "info", "archived": "default"})
    def state_badge(self, spec: HardwareSpec) -> str:
        if spec.archived_at:
            return "archived"
        return "fallback" if spec.fallback_at else "active"

    @display(description="Hardware")
    def hardware(self, spec: HardwareSpec) -> str:
        memory, disk = (f"{amount / GIBIBYTE:,.4g} GiB" for amount in (spec.memory, spec.disk))
        cpus = formatting.pluralize(spec.cpu, "CPU")
        return f"{spec.get_os_display()} {spec.architecture}, {cpus}, {memory} memory, {disk} disk"

    @display(description="Runners")
    def runner_list(self, spec: HardwareSpec) -> str:
        return ", ".join(sorted(worker.slug for worker in spec.workers.all())) or formatting.NO_VALUE

    @display(description="UUID")
    def uuid_text(self, spec: HardwareSpec) -> SafeString:
        return formatting.code(spec.uuid)
