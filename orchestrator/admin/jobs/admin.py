"""The pages of jobs: the list, one job, its log, and the buttons."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action
from unfold.enums import ActionVariant

from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.jobs import log, page, search
from orchestrator.admin.jobs.actions import (
    ACTIONS,
    CANCEL,
    MAX_JOBS,
    PRIORITIZE,
    REPLAY,
    RETRY,
    REUPLOAD,
    REVOKE,
    JobAction,
    available_actions,
    confirm_and_run,
)
from orchestrator.admin.jobs.columns import COLUMNS, JobColumns, PendingReasonChangeList
from orchestrator.admin.jobs.filters import FILTERS, TABS
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Job
from runtime_jobs.specs.oci import OCI


@admin.register(Job)
class JobAdmin(JobColumns, LargeTableAdmin):
    """Displays jobs and offers the actions of operators."""

    list_display = COLUMNS
    list_display_links = ["job"]
    list_filter = FILTERS
    list_fullwidth = True
    list_before_template = "admin/job_tabs.html"
    search_fields = ["job_ulid"]  # makes the theme display the search box; `search.find` does the search
    search_help_text = search.HELP
    ordering = ["-id"]
    change_form_template = "admin/job.html"
    actions = ["cancel_selected", "retry_selected", "reupload_selected", "revoke_selected", "prioritize_selected"]
    actions_detail = ["cancel", "retry", "replay", "reupload", "revoke", "prioritize"]

    # --- permission ---------------------------------------------------------------------------------------------------

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.operate_job")

    # --- list ---------------------------------------------------------------------------------------------------------

    def get_changelist(self, _request: HttpRequest, **_: Any) -> type[PendingReasonChangeList]:
        return PendingReasonChangeList

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        found = search.find(queryset, search_term) if search_term.strip() else queryset
        return found.defer("spec", "result", "progress"), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        here = reverse("admin:runtime_jobs_job_changelist")
        chosen = request.GET.getlist("status")
        tabs = [("all", here, not chosen)]
        tabs += [(status, f"{here}?{urlencode({'status': status})}", status in chosen) for status in TABS]
        return super().changelist_view(request, {"tabs": tabs} | (extra_context or {}))

    # --- one job ------------------------------------------------------------------------------------------------------

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """Accept the public id as well: logs and events contain only that one."""
        if is_id(object_id, "rtj"):
            return self.get_queryset(request).filter(job_ulid=object_id).first()
        return super().get_object(request, object_id, from_field)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Job, **kwargs: Any
    ) -> HttpResponse:
        now: datetime = timezone.now()
        context |= {"page": page.job_page(obj, now=now), "live": not obj.is_final}
        # Under WSGI a stream would occupy a thread, so the page polls.
        context["log_stream"] = isinstance(request, ASGIRequest) and obj.job_type != OCI
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("bulk/<str:action_name>/", wrap(self.bulk_view), name="runtime_jobs_job_bulk"),
            path("<path:object_id>/log/", wrap(self.log_view), name="runtime_jobs_job_log"),
            *super().get_urls(),
        ]

    def log_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        """Return the output after the cursor `?after=`. The page polls every two seconds while the job runs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = self.existing_row(request, object_id)
        return JsonResponse(asdict(log.after(job, request.GET.get("after", ""))))

    # --- buttons of one job -------------------------------------------------------------------------------------------

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer what applies to the job's state. The operation itself checks the state again."""
        available = available_actions(self.get_object(request, object_id))
        return [button for button in super().get_actions_detail(request, object_id) if button.path in available]

    @action(
        description=CANCEL.label,
        url_path=CANCEL.name,
        permissions=["operate"],
        icon="block",
        variant=ActionVariant.DANGER,
    )
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, CANCEL, [self.existing_row(request, object_id).job_ulid])

    @action(
        description=RETRY.label,
        url_path=RETRY.name,
        permissions=["operate"],
        icon="replay",
        variant=ActionVariant.PRIMARY,
    )
    def retry(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, RETRY, [self.existing_row(request, object_id).job_ulid])

    @action(description=REUPLOAD.label, url_path=REUPLOAD.name, permissions=["operate"], icon="upload")
    def reupload(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, REUPLOAD, [self.existing_row(request, object_id).job_ulid])

    @action(description=REVOKE.label, url_path=REVOKE.name, permissions=["operate"], icon="remove_moderator")
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, REVOKE, [self.existing_row(request, object_id).job_ulid])

    @action(description=PRIORITIZE.label, url_path=PRIORITIZE.name, permissions=["operate"], icon="swap_vert")
    def prioritize(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, PRIORITIZE, [self.existing_row(request, object_id).job_ulid])

    @action(description=REPLAY.label, url_path=REPLAY.name, permissions=["operate"], icon="fact_check")
    def replay(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, REPLAY, [self.existing_row(request, object_id).job_ulid])

    # --- actions of the list ------------------------------------------------------------------------------------------

    @admin.action(description=CANCEL.label, permissions=["operate"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._redirect_to_bulk(request, CANCEL, queryset)

    @admin.action(description=RETRY.label, permissions=["operate"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._redirect_to_bulk(request, RETRY, queryset)

    @admin.action(description=REUPLOAD.label, permissions=["operate"])
    def reupload_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._redirect_to_bulk(request, REUPLOAD, queryset)

    @admin.action(description=REVOKE.label, permissions=["operate"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._redirect_to_bulk(request, REVOKE, queryset)

    @admin.action(description=PRIORITIZE.label, permissions=["operate"])
    def prioritize_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._redirect_to_bulk(request, PRIORITIZE, queryset)

    def _redirect_to_bulk(
        self, request: HttpRequest, job_action: JobAction, queryset: QuerySet[Job]
    ) -> HttpResponse | None:
        """Redirect to a page that names the jobs: the list's filters would silently drop a job whose state changes."""
        job_ulids = list(queryset.values_list("job_ulid", flat=True)[: MAX_JOBS + 1])
        if len(job_ulids) > MAX_JOBS:
            messages.error(request, f"Select at most {MAX_JOBS} jobs.")
            return None
        address = reverse("admin:runtime_jobs_job_bulk", args=[job_action.name])
        query = [("job", job_ulid) for job_ulid in job_ulids] + [("_changelist_filters", request.GET.urlencode())]
        return HttpResponseRedirect(f"{address}?{urlencode(query)}")

    def bulk_view(self, request: HttpRequest, action_name: str) -> HttpResponse:
        """Run an action on the jobs that the address names."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        if action_name not in ACTIONS:
            raise Http404
        return confirm_and_run(self, request, ACTIONS[action_name], request.GET.getlist("job"))
