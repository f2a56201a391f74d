"""Quotas: for each organization the use of each limit, the next start, and the starts of the last day."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import display

from leases.scheduling.limits import ALL_TYPES
from leases.scheduling.quotas import Quota
from orchestrator.admin import formatting
from orchestrator.admin.base import FixedOrderChangeList, LargeTableAdmin
from orchestrator.admin.labels import stored_actor_label
from orchestrator.limits.quota_overview import QuotaOverview
from orchestrator.limits.quota_use import MAX_WAITING, QuotaUse, quota_uses, read_use, waiting_counts
from runtime_jobs.models import Organization
from runtime_jobs.specs import JOB_TYPES

DAY = timedelta(days=1)


class QuotaUseChangeList(FixedOrderChangeList):
    """Adds to each organization of a page its quota of all job types, and the starts of the last day."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        page: list[Any] = list(self.result_list)  # type: ignore[has-type] # Django's, without a type
        slugs = [organization.slug for organization in page]
        started: Counter[str] = Counter()
        for starts in read_use(slugs, timezone.now() - DAY):
            started[starts.org_slug] += starts.started
        waiting = waiting_counts(slugs)
        for organization, use in zip(page, quota_uses([(slug, ALL_TYPES) for slug in slugs]), strict=True):
            organization.use, organization.started_last_day = use, started[organization.slug]
            organization.waiting = waiting[organization.slug]
        self.result_list = page


@admin.register(QuotaOverview)
class QuotaAdmin(LargeTableAdmin):
    """Displays quotas. They are changed on the page of the organization, or by the API."""

    list_display = ["identifier", "queued", "running", "starts", "emergencies", "next_start", "last_day", "setter"]
    search_fields = ["slug__startswith"]
    search_help_text = "Organization (prefix)"
    ordering = ["-id"]
    list_select_related = ["plan"]
    fields = ["organization"]
    identifier = formatting.value_column("slug", "Organization")
    change_form_outer_before_template = "admin/quotas.html"

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Admit those who may view the page or the limits of which a quota consists."""
        return super().has_view_permission(request, obj) or request.user.has_perm("leases.view_limit")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_changelist(self, _request: HttpRequest, **_: Any) -> type[QuotaUseChangeList]:
        return QuotaUseChangeList

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Any = None, **kwargs: Any
    ) -> HttpResponse:
        if obj is not None:
            context["quotas"] = _quotas_of(obj)
            context["queued"] = _queued(obj, waiting_counts([obj.slug])[obj.slug])
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    @display(description="Limits")
    def organization(self, organization: QuotaOverview) -> SafeString:
        return formatting.link(formatting.change_url(Organization, organization.pk), "Set limits")

    @display(description="Queued")
    def queued(self, organization: Any) -> str:
        return _queued(organization, organization.waiting)

    @display(description="Running")
    def running(self, organization: Any) -> str:
        return _running(organization.use)

    @display(description="Started (1 h)")
    def starts(self, organization: Any) -> str:
        return _starts(organization.use)

    @display(description="Emergencies")
    def emergencies(self, organization: Any) -> str:
        return _emergencies(organization.use.quota)

    @display(description="Next start")
    def next_start(self, organization: Any) -> SafeString | str:
        return _next_start(organization.use.next_start_at)

    @display(description="Started (24 h)")
    def last_day(self, organization: Any) -> str:
        return f"{organization.started_last_day:,}"

    @display(description="Set by")
    def setter(self, organization: Any) -> str:
        return _setter(organization.use.quota)


def _quotas_of(organization: Organization) -> list[dict[str, object]]:
    """Return a row for all job types and for each type, as `admin/quotas.html` shows them."""
    started = {use.job_type: use.started for use in read_use([organization.slug], timezone.now() - DAY)}
    uses = quota_uses([(organization.slug, job_type) for job_type in (ALL_TYPES, *JOB_TYPES)])
    return [
        {
            "job_type": "All types" if use.quota.job_type == ALL_TYPES else use.quota.job_type,
            "running": _running(use),
            "starts": _starts(use),
            "emergencies": _emergencies(use.quota),
            "next_start": _next_start(use.next_start_at),
            "last_day": sum(started.values())
            if use.quota.job_type == ALL_TYPES
            else started.get(use.quota.job_type, 0),
            "setter": _setter(use.quota),
        }
        for use in uses
    ]


def _queued(organization: Any, waiting: int) -> str:
    limit = organization.plan.max_queued
    shown = f"{waiting:,}" if waiting <= MAX_WAITING else f"{MAX_WAITING:,}+"
    return f"{shown} of {limit:,}" if limit is not None else f"{shown}, no limit"


def _running(use: QuotaUse) -> str:
    limit = use.quota.concurrency
    return f"{use.active:,} of {limit.max_active:,}" if limit else f"{use.active:,}, no limit"


def _starts(use: QuotaUse) -> str:
    rate = use.quota.rate
    return (
        f"{use.started_last_hour:,} of {rate.per_hour:,}, burst {rate.burst:,}"
        if rate
        else f"{use.started_last_hour:,}, no limit"
    )


def _emergencies(quota: Quota) -> str:
    if quota.job_type != ALL_TYPES:
        return ""
    return f"at most {quota.emergency.max_active:,}" if quota.emergency else "refused"


def _next_start(due: datetime | None) -> SafeString | str:
    if due is None:
        return formatting.NO_VALUE
    return formatting.with_timestamp(formatting.time_until(due, timezone.now()), due)


def _setter(quota: Quota) -> str:
    newest = quota.newest
    return (stored_actor_label(newest.set_by) if newest else "") or formatting.NO_VALUE
