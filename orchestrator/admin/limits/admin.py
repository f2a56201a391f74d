"""What holds jobs back: how much of it is used, until when, by whom and why. It is set on the page of what it holds."""

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
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.filters import any_of, exactly, one_of
from orchestrator.admin.limits import labels
from orchestrator.admin.limits.pause import asked_by, permission_for
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Organization, Project
from workers.models import Pool

# The verb that lifts a limit, by its kind. What is not here follows something else.
LIFTED = (LimitKind.ORGANIZATION, LimitKind.EMERGENCY, LimitKind.RATE, LimitKind.PAUSE, LimitKind.THROTTLE)
SCOPES = [(str(scope), str(scope).replace("_", " ")) for scope in LimitScope]


@admin.register(Limit)
class LimitAdmin(LargeTableAdmin):
    list_display = ["shown_kind", "whose", "allowed", "used", "next_start", "ends", "setter", "why"]
    list_filter = [
        any_of("kind", "kind", [(str(kind), labels.KINDS[kind]) for kind in LimitKind]),
        one_of("scope", "of", SCOPES),
        exactly("org_slug", "organization"),
        exactly("key", "project, pool, type or key"),
        one_of("waiting", "jobs wait", [("True", "Yes"), ("False", "No")]),
    ]
    ordering = ["-id"]
    fields = ["words", "whose", "allowed", "used", "holds", "next_start", "end", "setter", "since", "why"]
    actions_detail = ["lift"]
    since = formatting.time_of("set_at", "Set at")
    end = formatting.time_of("until", "Until")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Limit]:
        return super().get_queryset(request).counted()

    def has_lift_permission(self, request: HttpRequest, object_id: object = None) -> bool:
        """Of the button that sets what it lifts."""
        limit = self.get_object(request, str(object_id))
        return limit is not None and request.user.has_perm(permission_for(limit))

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        limit = self.get_object(request, object_id)
        return super().get_actions_detail(request, object_id) if limit and limit.kind in LIFTED else []

    @action(description="Lift", url_path="lift", permissions=["lift"], icon="lock_open", variant=ActionVariant.PRIMARY)
    def lift(self, request: HttpRequest, object_id: str) -> HttpResponse:
        limit: Any = self.get_object(request, object_id)
        if limit is None or limit.kind not in LIFTED:
            raise Http404
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            return _lifted(request, limit, form)
        lead = "What it held back may start at once, as far as other limits let it."
        question = ConfirmPage(f"Lift: {labels.KINDS[limit.kind]}, {labels.whose(limit)}", lead, "Lift", _page(limit))
        return render_confirm(self, request, question, form)

    @display(description="Kind", label=labels.COLOURS)
    def shown_kind(self, limit: Limit) -> tuple[str, str]:
        return limit.kind, labels.KINDS[limit.kind]

    @display(description="Kind")
    def words(self, limit: Limit) -> str:
        return labels.KINDS[limit.kind]

    @display(description="Jobs wait for it")
    def holds(self, limit: Limit) -> str:
        return "yes" if limit.waiting else "no"

    @display(description="Whose jobs")
    def whose(self, limit: Limit) -> SafeString | str:
        address = _page_of_subject(limit)
        return formatting.link(address, labels.whose(limit)) if address else labels.whose(limit)

    @display(description="Lets through")
    def allowed(self, limit: Limit) -> str:
        return labels.allows(limit)

    @display(description="Running")
    def used(self, limit: Limit) -> str:
        return labels.used(limit)

    @display(description="Next start")
    def next_start(self, limit: Limit) -> SafeString | str:
        now = timezone.now()
        due = labels.next_start(limit, now)
        return formatting.with_timestamp(formatting.time_until(due, now), due) if due else "-"

    @display(description="Ends")
    def ends(self, limit: Limit) -> SafeString | str:
        return (
            formatting.with_timestamp(formatting.time_until(limit.until, timezone.now()), limit.until)
            if limit.until
            else "-"
        )

    @display(description="Set by")
    def setter(self, limit: Limit) -> SafeString:
        since = formatting.time_ago(limit.set_at, timezone.now()) if limit.set_at else ""
        return formatting.two_lines(labels.set_by(limit), since)

    @display(description="Why")
    def why(self, limit: Limit) -> str:
        return limit.note or "-"


def _lifted(request: HttpRequest, limit: Limit, form: ReasonForm) -> HttpResponse:
    subject = LimitTarget(LimitScope(limit.scope), limit.org_slug, limit.key)
    about = {"org_slug": limit.org_slug, "job_type": limit.key, **asked_by(request, form)}
    try:
        match limit.kind:
            case LimitKind.PAUSE:
                services.resume(subject=subject, **asked_by(request, form))
            case LimitKind.THROTTLE:
                services.throttle(subject=subject, per_hour=None, **asked_by(request, form))
            case LimitKind.RATE:
                services.set_rate(per_hour=None, **about)
            case kind:
                services.set_limit(max_active=None, kind=LimitKind(kind), **about)
    except LifecycleError as refusal:
        messages.warning(request, refusal.message)
    else:
        messages.success(request, f"Lifted: {labels.KINDS[limit.kind]}, {labels.whose(limit)}.")
    return HttpResponseRedirect(formatting.changelist_url(Limit))


def _page(limit: Limit) -> str:
    return formatting.change_url(Limit, limit.pk)


def _page_of_subject(limit: Limit) -> str:
    """A list of one: a page's address would take a query for each row."""
    match limit.scope:
        case LimitScope.ORGANIZATION:
            return formatting.changelist_url(Organization, q=limit.org_slug)
        case LimitScope.PROJECT:
            return formatting.changelist_url(Project, q=limit.key, organization__slug=limit.org_slug)
        case LimitScope.POOL:
            return formatting.changelist_url(Pool, q=limit.key)
    return ""
