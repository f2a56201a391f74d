"""The list of limits: scope, value, use, expiry, and who set each. A limit is set on the page of its scope."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, render_confirm
from orchestrator.admin.filters import YES_NO, OrganizationFilter, choice_filter, exact_filter, multiple_choice_filter
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.limits import labels
from orchestrator.admin.limits.pause import permission_for
from orchestrator.limits.job_limits import UNLIMITED, set_limit
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Organization, Project
from workers.models import Pool

# Kinds that an operator sets and removes. The others follow a plan, a job or a breaker.
REMOVABLE = (
    *(LimitKind.ORGANIZATION, LimitKind.PROJECT, LimitKind.EMERGENCY, LimitKind.RATE),
    *(LimitKind.PAUSE, LimitKind.THROTTLE),
)


@admin.register(Limit)
class LimitAdmin(LargeTableAdmin):
    """Displays limits and removes those that operators set."""

    list_display = ["kind_badge", "scope_link", "value", "used", "next_start", "expires", "setter", "reason"]
    list_filter = [
        multiple_choice_filter("kind", "kind", [(str(kind), labels.KINDS[kind]) for kind in LimitKind]),
        choice_filter("scope", "scope", [(str(scope), labels.SCOPES[scope]) for scope in LimitScope]),
        OrganizationFilter,
        exact_filter("project, pool, type or group", "key"),
        choice_filter("blocks jobs", "waiting", YES_NO),
    ]
    ordering = ["-id"]
    fields = ["kind_text", "scope_link", "value", "used", "blocks", "next_start", "expiry", "setter", "since", "reason"]
    actions_detail = ["remove"]
    since = formatting.timestamp_column("set_at", "Set at")
    expiry = formatting.timestamp_column("until", "Expires")
    reason = formatting.value_column("note", "Reason")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Limit]:
        return super().get_queryset(request).counted()

    def has_remove_permission(self, request: HttpRequest, object_id: object = None) -> bool:
        """Require the permission that sets such a limit."""
        limit = self.get_object(request, str(object_id))
        return limit is not None and request.user.has_perm(permission_for(limit))

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        limit = self.get_object(request, object_id)
        return super().get_actions_detail(request, object_id) if limit and limit.kind in REMOVABLE else []

    @action(
        description="Remove limit",
        url_path="remove",
        permissions=["remove"],
        icon="lock_open",
        variant=ActionVariant.PRIMARY,
    )
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        limit: Any = self.get_object(request, object_id)
        if limit is None or limit.kind not in REMOVABLE:
            raise Http404
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            return _remove(request, limit, form)
        page = ConfirmPage(
            f"Remove limit: {_name(limit)}",
            "Jobs that this limit blocks can start, as far as other limits allow.",
            "Remove limit",
            formatting.change_url(Limit, limit.pk),
        )
        return render_confirm(self, request, page, form)

    @display(description="Kind", label=labels.COLOURS)
    def kind_badge(self, limit: Limit) -> tuple[str, str]:
        return limit.kind, labels.KINDS[limit.kind]

    @display(description="Kind")
    def kind_text(self, limit: Limit) -> str:
        return labels.KINDS[limit.kind]

    @display(description="Blocks jobs")
    def blocks(self, limit: Limit) -> str:
        return "yes" if limit.waiting else "no"

    @display(description="Scope")
    def scope_link(self, limit: Limit) -> SafeString | str:
        address = _scope_url(limit)
        return formatting.link(address, labels.scope_of(limit)) if address else labels.scope_of(limit)

    @display(description="Limit")
    def value(self, limit: Limit) -> str:
        return labels.value_of(limit)

    @display(description="Running")
    def used(self, limit: Limit) -> str:
        return labels.usage_of(limit)

    @display(description="Next start")
    def next_start(self, limit: Limit) -> SafeString | str:
        now = timezone.now()
        due = labels.next_start(limit, now)
        return formatting.with_timestamp(formatting.time_until(due, now), due) if due else formatting.NO_VALUE

    @display(description="Expires")
    def expires(self, limit: Limit) -> SafeString | str:
        if limit.until is None:
            return formatting.NO_VALUE
        return formatting.with_timestamp(formatting.time_until(limit.until, timezone.now()), limit.until)

    @display(description="Set by")
    def setter(self, limit: Limit) -> SafeString:
        since = formatting.time_ago(limit.set_at, timezone.now()) if limit.set_at else ""
        return formatting.two_lines(labels.set_by(limit), since)


def _name(limit: Limit) -> str:
    return f"{labels.KINDS[limit.kind]}, {labels.scope_of(limit)}"


def _remove(request: HttpRequest, limit: Limit, form: ReasonForm) -> HttpResponse:
    try:
        set_limit(LimitKind(limit.kind), LimitTarget.of_limit(limit), UNLIMITED, cause=cause_of(request, form))
    except LifecycleError as refusal:
        messages.warning(request, refusal.message)
    else:
        messages.success(request, f"Limit removed: {_name(limit)}.")
    return HttpResponseRedirect(formatting.changelist_url(Limit))


def _scope_url(limit: Limit) -> str:
    """Return a list narrowed to one row: the address of the row's page would take a query for each limit."""
    match limit.scope:
        case LimitScope.ORGANIZATION:
            return formatting.changelist_url(Organization, q=limit.org_slug)
        case LimitScope.PROJECT:
            return formatting.changelist_url(Project, q=limit.key, organization__slug=limit.org_slug)
        case LimitScope.POOL:
            return formatting.changelist_url(Pool, q=limit.key)
    return ""
