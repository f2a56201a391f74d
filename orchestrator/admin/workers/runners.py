"""The pages of runners of the Bencher protocol: key, archive, name, hardware specs. A key is shown once."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminSelectWidget

from orchestrator.admin import formatting
from orchestrator.admin.confirm import ConfirmPage, cause_of, confirm_for_row, render_confirm
from orchestrator.admin.dashboard import queries
from orchestrator.admin.filters import choice_filter
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.token_pages import CreateWithToken, render_token_once
from orchestrator.admin.workers.admin import HEALTH, health_of, worker_summary
from orchestrator.admin.workers.archivable import ArchivableAdmin, validated
from orchestrator.core.cause import Cause
from orchestrator.services.runner_channels import open_channels
from orchestrator.services.runners import (
    MAX_SLUG_LENGTH,
    add_runner_spec,
    change_runner,
    create_runner,
    default_slug,
    remove_runner_spec,
    rotate_runner_key,
)
from runtime_jobs.errors import LifecycleError
from runtime_jobs.resource_names import validate_resource_name, validate_slug
from workers.models import HardwareSpec, Runner, Worker
from workers.registry.models import WorkerState

MAX_LISTED_SPECS = 5
CHANNEL_STATES = ("executing", "polling", "idle")
BUTTONS = {
    WorkerState.ARCHIVED: {"rename", "add-spec", "remove-spec", "restore"},
    WorkerState.REVOKED: {"remove-spec"},
}
OTHER_BUTTONS = {"rename", "add-spec", "remove-spec", "rotate-key", "archive"}


class NewRunnerForm(forms.ModelForm):
    """Asks for the name of a new runner, and for its slug if that of the name is not wanted."""

    class Meta:
        model = Runner
        fields = ["name", "slug"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].required = True
        self.fields["slug"].required = False
        self.fields["slug"].validators = []
        self.fields["slug"].help_text = "Unique name in URLs. Empty: made from the name."

    def clean_name(self) -> str:
        return validated(self.cleaned_data["name"], validate_resource_name)

    def clean_slug(self) -> str:
        slug: str = self.cleaned_data["slug"]
        if len(slug) > MAX_SLUG_LENGTH:
            raise forms.ValidationError(f"At most {MAX_SLUG_LENGTH} characters are allowed.")
        return validated(slug, validate_slug) if slug else ""

    def clean(self) -> dict[str, Any]:
        values = dict(self.cleaned_data)
        if not self.errors:
            values["slug"] = values["slug"] or default_slug(values["name"])
            if Worker.objects.filter(slug=values["slug"]).exists():
                self.add_error("slug", f"A runner or worker with the slug {values['slug']} exists already.")
        return values

    def _post_clean(self) -> None:
        """Skip the checks of the model's fields: the operation creates the row."""


class SpecForm(ReasonForm):
    """Asks for a reason and for a hardware spec."""

    spec = forms.ModelChoiceField(queryset=HardwareSpec.objects.none(), widget=UnfoldAdminSelectWidget)
    field_order = ("spec", "reason")

    def __init__(self, specs: QuerySet[HardwareSpec], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["spec"]
        field.queryset = specs


class ChannelChangeList(ChangeList):
    """Adds to each runner of a page its open channels."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        page: list[Any] = list(self.result_list)  # type: ignore[has-type] # Django's, without a type
        channels = open_channels(page)
        for runner in page:
            runner.channels = channels[runner.pk]
        self.result_list = page


@admin.register(Runner)
class RunnerAdmin(CreateWithToken, ArchivableAdmin):
    """Displays runners; every change is a button with a reason."""

    label = "Key"
    form = NewRunnerForm
    add_description = (
        "Creates a runner for `runner up --key`. The next page shows its key once. "
        "A runner gets jobs of the hardware specs that are associated with it."
    )
    list_display = [
        *("slug", "name_text", "health_badge", "version", "spec_list", "channel_list", "running", "last_heartbeat"),
    ]
    list_filter = [choice_filter("state", "state", WorkerState.choices)]
    search_fields = ["slug__startswith", "name__startswith"]
    search_help_text = "Slug or name (prefix)"
    ordering = ["slug"]
    actions_detail = ["rename", "add_spec", "remove_spec", "rotate_key", "archive", "restore"]
    details = [
        *(
            "name_text",
            "slug",
            "uuid_text",
            "worker_id",
            "version",
            "spec_links",
            "channel_list",
            "created",
            "modified",
            "archived",
        ),
    ]
    requested = ["name", "slug"]
    archive_text = "The runner's key is refused and it gets no new jobs. Its running jobs continue."
    restore_text = "The runner's key is valid again, and it gets jobs."
    name_text = formatting.value_column("display_name", "Name")
    version = formatting.value_column("agent_version", "Version")
    last_heartbeat = formatting.age_column("last_seen_at", "Last heartbeat")
    created = formatting.timestamp_column("created_at", "Created")
    modified = formatting.timestamp_column("modified_at", "Modified")
    archived = formatting.timestamp_column("archived_at", "Archived")

    change_form_outer_before_template = "admin/worker.html"

    def get_changelist(self, _request: HttpRequest, **_: Any) -> type[ChannelChangeList]:
        return ChannelChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Runner]:
        runners: Any = super().get_queryset(request).prefetch_related("specs")
        return queries.with_active_leases(runners)  # type: ignore[return-value] # as it was given

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Runner, **kwargs: Any
    ) -> HttpResponse:
        """Add the health of the runner and its jobs. `obj` is never None: creation has a page of its own."""
        return super().render_change_form(request, context | worker_summary(obj), *args, obj=obj, **kwargs)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        runner = self.get_object(request, object_id)
        available = BUTTONS.get(WorkerState(runner.state), OTHER_BUTTONS) if runner else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.path in available]

    def name_of(self, row: Runner) -> str:
        return row.display_name

    def change_row(self, row: Runner, cause: Cause, **changes: Any) -> Worker:
        return change_runner(worker_id=row.worker_id, **changes, cause=cause)

    def target_of(self, row: Any) -> str:
        return row.worker_id

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[Runner, str]:
        worker, key = create_runner(
            name=values["name"],
            slug=values["slug"],
            cause=cause_of(request),
        )
        return Runner.objects.get(pk=worker.pk), key

    # --- buttons ------------------------------------------------------------------------------------------------------

    @action(description="Add spec", url_path="add-spec", permissions=["operate"], icon="add")
    def add_spec(self, request: HttpRequest, object_id: str) -> HttpResponse:
        runner = self.existing_row(request, object_id)
        form = SpecForm(HardwareSpec.objects.exclude(workers=runner).order_by("slug"), request.POST or None)

        def act(runner: Runner, cause: Cause) -> str:
            spec = form.cleaned_data["spec"]
            add_runner_spec(worker_id=runner.worker_id, spec_uuid=spec.uuid, cause=cause)
            return f"{runner.slug}: provides {spec.slug}"

        text = (
            "The runner then gets jobs that ask for the spec. You vouch that the machine has this hardware, "
            "and the sandbox if the spec has one."
        )
        title = "Add a hardware spec to {row.slug}"
        return confirm_for_row(
            self, request, object_id, act, button="Add spec", description=text, title=title, form=form
        )

    @action(description="Remove spec", url_path="remove-spec", permissions=["operate"], icon="remove")
    def remove_spec(self, request: HttpRequest, object_id: str) -> HttpResponse:
        runner = self.existing_row(request, object_id)
        form = SpecForm(HardwareSpec.objects.filter(workers=runner).order_by("slug"), request.POST or None)

        def act(runner: Runner, cause: Cause) -> str:
            spec = form.cleaned_data["spec"]
            remove_runner_spec(worker_id=runner.worker_id, spec_uuid=spec.uuid, cause=cause)
            return f"{runner.slug}: no longer provides {spec.slug}"

        text = "The runner gets no more jobs that ask for the spec. Its running jobs continue."
        title = "Remove a hardware spec from {row.slug}"
        return confirm_for_row(
            self, request, object_id, act, button="Remove spec", description=text, title=title, form=form
        )

    @action(description="Rotate key", url_path="rotate-key", permissions=["operate"], icon="key")
    def rotate_key(self, request: HttpRequest, object_id: str) -> HttpResponse:
        runner = self.existing_row(request, object_id)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                _, key = rotate_runner_key(worker_id=runner.worker_id, cause=cause_of(request, form))
            except LifecycleError as refusal:
                return _refuse(request, runner, refusal)
            return render_token_once(self, request, runner, key, label=self.label)
        description = "Creates a new key and shows it once. The current key is refused at once; open connections stay."
        page = ConfirmPage(f"Rotate key of {runner.slug}", description, "Rotate key", _url(runner))
        return render_confirm(self, request, page, form)

    # --- columns ------------------------------------------------------------------------------------------------------

    @display(description="Health", label=dict(HEALTH.values()))
    def health_badge(self, runner: Runner) -> str:
        return HEALTH[health_of(runner)][0]

    @display(description="Running")
    def running(self, runner: Any) -> str:
        return formatting.pluralize(runner.active_leases, "job")

    @display(description="Hardware specs")
    def spec_list(self, runner: Runner) -> str:
        slugs = sorted(spec.slug for spec in runner.specs.all())
        more = len(slugs) - MAX_LISTED_SPECS
        return ", ".join(slugs[:MAX_LISTED_SPECS]) + (f" and {more} more" if more > 0 else "") or formatting.NO_VALUE

    @display(description="Hardware specs")
    def spec_links(self, runner: Runner) -> SafeString | str:
        links = (
            (formatting.link(formatting.change_url(HardwareSpec, spec.pk), spec.slug),)
            for spec in sorted(runner.specs.all(), key=lambda spec: spec.slug)
        )
        return format_html_join(", ", "{}", links) or formatting.NO_VALUE

    @display(description="Channels")
    def channel_list(self, runner: Any) -> str:
        """Format the open channels by state, as the processes have last reported them."""
        found = runner.channels if hasattr(runner, "channels") else open_channels([runner])[runner.pk]
        return ", ".join(f"{found[state]} {state}" for state in CHANNEL_STATES if found[state]) or formatting.NO_VALUE

    @display(description="UUID")
    def uuid_text(self, runner: Runner) -> SafeString:
        return formatting.code(runner.uuid)


def _refuse(request: HttpRequest, runner: Runner, refusal: LifecycleError) -> HttpResponse:
    messages.warning(request, refusal.message)
    return HttpResponseRedirect(_url(runner))


def _url(runner: Runner) -> str:
    return formatting.change_url(Runner, runner.pk)
