"""The pages of runners of workflow jobs: registration, drain, tokens, revocation. A token is shown once."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from leases.states import OPEN as OPEN_LEASES
from orchestrator.admin import formatting
from orchestrator.admin.confirm import ConfirmPage, cause_of, confirm_for_row, render_confirm
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.token_pages import CreateWithToken, render_token_once
from orchestrator.admin.workers.admin import HEALTH, health_of, worker_summary
from orchestrator.admin.workers.archivable import WorkerRowAdmin
from orchestrator.core.cause import Cause
from orchestrator.services import actions_runners, worker_state
from orchestrator.services.actions_runners import DEFAULT_LABELS, MAX_CAPACITY, normalize_labels
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.models.tenants import ISOLATION_CHOICES
from workers.models import ActionsRunner, Pool
from workers.registry.models import WorkerState

DEFAULT_OVERLAP_MINUTES = 60
MAX_LISTED_TOKENS = 10
TITLE = "{button} {row.name}"
BUTTONS = {
    WorkerState.ACTIVE: {"drain", "rotate-token", "revoke"},
    WorkerState.REVOKED: set(),
}
OTHER_BUTTONS = {"undrain", "rotate-token", "revoke"}


class NewActionsRunnerForm(forms.ModelForm):
    """Asks for the name, labels, capacity and pool of a new runner."""

    label_text = forms.CharField(
        label="Labels",
        initial=",".join(DEFAULT_LABELS),
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Separated by commas. The runner's heartbeats replace them.",
    )
    capacity = forms.IntegerField(
        min_value=1,
        max_value=MAX_CAPACITY,
        initial=1,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Number of running jobs.",
    )
    pool = forms.ModelChoiceField(queryset=Pool.objects.order_by("slug"), widget=UnfoldAdminSelectWidget)
    isolation = forms.ChoiceField(
        choices=ISOLATION_CHOICES, initial="namespaces", widget=UnfoldAdminSelectWidget, help_text="You vouch for it."
    )

    expires_after_days = forms.IntegerField(
        label="Token expires after (days)",
        min_value=1,
        max_value=3650,
        required=False,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Empty: never.",
    )

    class Meta:
        model = ActionsRunner
        fields = ["name"]

    def clean_label_text(self) -> list[str]:
        try:
            return normalize_labels([label for label in self.cleaned_data["label_text"].split(",") if label])
        except Invalid as error:
            raise forms.ValidationError(error.errors["labels"]) from None


class RotationForm(ReasonForm):
    """Asks for a reason and for the time during which both tokens are valid."""

    overlap_minutes = forms.IntegerField(
        min_value=0,
        max_value=7 * 24 * 60,
        initial=DEFAULT_OVERLAP_MINUTES,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="How long the other tokens stay valid. 0: they end at once.",
    )
    field_order = ("overlap_minutes", "reason")


@admin.register(ActionsRunner)
class ActionsRunnerAdmin(CreateWithToken, WorkerRowAdmin):
    """Displays runners of workflow jobs; every change is a button with a reason."""

    label = "Registration token"
    form = NewActionsRunnerForm
    add_description = (
        "Registers a runner of workflow jobs. The next page shows its token once. "
        "The runner gets jobs of its pool whose label it has."
    )
    list_display = ["name", "health_badge", "pool", "label_list", "running", "version", "last_heartbeat"]
    search_fields = ["name__startswith"]
    search_help_text = "Name (prefix)"
    ordering = ["name"]
    list_select_related = ["worker__pool"]
    actions_detail = ["drain", "undrain", "rotate_token", "revoke"]
    requested: ClassVar = ["name", "label_text", "capacity", "pool", "isolation", "expires_after_days"]
    details: ClassVar = ["name", "pool", "label_list", "capacity", "isolation", "host_name", "version"]
    last_heartbeat = formatting.age_column("last_seen_at", "Last heartbeat")

    change_form_outer_before_template = "admin/actions_runner.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[ActionsRunner]:
        running = Count("worker__leases", filter=Q(worker__leases__state__in=OPEN_LEASES))
        return super().get_queryset(request).select_related("worker__pool").annotate(active_leases=running)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: ActionsRunner, **kwargs: Any
    ) -> HttpResponse:
        """Add health, jobs and tokens of the runner. `obj` is never None: creation has a page of its own."""
        summary = worker_summary(obj.worker) | {"tokens": _tokens(obj)}
        return super().render_change_form(request, context | summary, *args, obj=obj, **kwargs)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        runner = self.get_object(request, object_id)
        available = BUTTONS.get(WorkerState(runner.worker.state), OTHER_BUTTONS) if runner else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.path in available]

    def target_of(self, row: Any) -> str:
        return row.worker.worker_id

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[ActionsRunner, str]:
        runner, _row, token = actions_runners.register_runner(
            name=values["name"],
            labels=values["label_text"],
            capacity=values["capacity"],
            pool=values["pool"].slug,
            isolation=values["isolation"],
            expires_in=timedelta(days=days) if (days := values["expires_after_days"]) else None,
            cause=cause_of(request),
        )
        return runner, token

    # --- buttons ------------------------------------------------------------------------------------------------------

    @action(description="Drain", url_path="drain", permissions=["operate"], icon="filter_alt")
    def drain(self, request: HttpRequest, object_id: str) -> HttpResponse:
        act = _set_state(WorkerState.DRAINING, "draining")
        text = "The runner finishes its running jobs and gets no new ones."
        return confirm_for_row(self, request, object_id, act, button="Drain", description=text, title=TITLE)

    @action(description="Undrain", url_path="undrain", permissions=["operate"], icon="play_arrow")
    def undrain(self, request: HttpRequest, object_id: str) -> HttpResponse:
        act, text = _set_state(WorkerState.ACTIVE, "active"), "The runner gets jobs again."
        return confirm_for_row(self, request, object_id, act, button="Undrain", description=text, title=TITLE)

    @action(
        description="Revoke", url_path="revoke", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = (
            "Revokes the tokens of the runner and its open leases at once. A revoked runner cannot be restored."
        )

        def act(runner: ActionsRunner, cause: Cause) -> str:
            ended = actions_runners.revoke_runner(name=runner.name, cause=cause)
            return f"{runner.name}: revoked, {formatting.pluralize(ended, 'lease')} revoked"

        return confirm_for_row(
            self, request, object_id, act, button="Revoke", description=description, title=TITLE, danger=True
        )

    @action(description="Rotate token", url_path="rotate-token", permissions=["operate"], icon="key")
    def rotate_token(self, request: HttpRequest, object_id: str) -> HttpResponse:
        runner, form = self.existing_row(request, object_id), RotationForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                _, _, token = actions_runners.rotate_registration_token(
                    name=runner.name,
                    overlap=timedelta(minutes=form.cleaned_data["overlap_minutes"]),
                    cause=cause_of(request, form),
                )
            except LifecycleError as refusal:
                messages.warning(request, refusal.message)
                return HttpResponseRedirect(_url(runner))
            return render_token_once(self, request, runner, token, label=self.label)
        description = "Creates a new token and shows it once. The other tokens end after the overlap."
        page = ConfirmPage(f"Rotate token of {runner.name}", description, "Rotate token", _url(runner))
        return render_confirm(self, request, page, form)

    # --- columns ------------------------------------------------------------------------------------------------------

    @display(description="Health", label=dict(HEALTH.values()))
    def health_badge(self, runner: ActionsRunner) -> str:
        return HEALTH[health_of(runner.worker)][0]

    @display(description="Pool", ordering="worker__pool__slug")
    def pool(self, runner: ActionsRunner) -> str:
        return runner.worker.pool.slug

    @display(description="Labels")
    def label_list(self, runner: ActionsRunner) -> str:
        return ", ".join(runner.labels) or formatting.NO_VALUE

    @display(description="Running")
    def running(self, runner: Any) -> str:
        return f"{runner.active_leases} of {runner.worker.capacity}"

    @display(description="Capacity")
    def capacity(self, runner: ActionsRunner) -> int:
        return runner.worker.capacity


def _set_state(state: WorkerState, word: str) -> Callable[[ActionsRunner, Cause], str]:
    def act(runner: ActionsRunner, cause: Cause) -> str:
        worker_state.set_worker_state(worker_id=runner.worker.worker_id, state=state, cause=cause)
        return f"{runner.name}: {word}"

    return act


def _tokens(runner: ActionsRunner) -> list[dict[str, Any]]:
    """Return the newest tokens of a runner, each with its times and whether it is accepted."""
    now = timezone.now()
    newest = runner.tokens.order_by("-pk")[:MAX_LISTED_TOKENS]
    times = ("created_at", "expires_at")
    return [{name: getattr(row, name) for name in times} | {"state": row.state_at(now)} for row in newest]


def _url(runner: ActionsRunner) -> str:
    return formatting.change_url(ActionsRunner, runner.pk)
