"""Jobs: a list to find them by, a page that says everything about one, and the verbs as buttons."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
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
    LIMIT,
    PRIORITIZE,
    RESEND,
    RETRY,
    REVOKE,
    JobAction,
    available_actions,
    confirm_and_run,
)
from orchestrator.admin.jobs.artifacts import left_behind
from orchestrator.admin.jobs.columns import COLUMNS, JobColumns, WithPendingReason
from orchestrator.admin.jobs.filters import FILTERS, WORDS
from orchestrator.admin.labels import JOB_COLOURS
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Job


@admin.register(Job)
class JobAdmin(JobColumns, LargeTableAdmin):
    list_display = COLUMNS
    list_display_links = ["job"]
    list_filter = FILTERS
    list_fullwidth = True
    list_before_template = "admin/job_tabs.html"
    search_fields = ["job_ulid"]  # shows the box; `find` says what is looked for
    search_help_text = search.HELP
    ordering = ["-id"]
    change_form_template = "admin/job.html"
    actions = ["cancel_selected", "retry_selected", "resend_selected", "revoke_selected", "prioritize_selected"]
    actions_detail = ["cancel", "retry", "resend", "revoke", "prioritize"]

    # --- who may ------------------------------------------------------------------------------------------------------

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.operate_job")

    # --- the list -----------------------------------------------------------------------------------------------------

    def get_changelist(self, _request: HttpRequest, **_: Any) -> type[WithPendingReason]:
        return WithPendingReason

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        found = search.find(queryset, search_term) if search_term.strip() else queryset
        return found.defer("spec", "result", "progress"), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        here = reverse("admin:runtime_jobs_job_changelist")
        tabs = [("all", here), *((word, f"{here}?{urlencode({'status': word})}") for word in WORDS)]
        chosen = request.GET.getlist("status") or ["all"]
        return super().changelist_view(request, {"tabs": tabs, "chosen": chosen} | (extra_context or {}))

    # --- one job ------------------------------------------------------------------------------------------------------

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """By its public id too: that is what logs, events and people name it by."""
        if is_id(object_id, "rtj"):
            return self.get_queryset(request).filter(job_ulid=object_id).first()
        return super().get_object(request, object_id, from_field)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Job, **kwargs: Any
    ) -> HttpResponse:
        now: datetime = timezone.now()
        context |= {"page": page.page(obj, now=now), "now": now, "live": not obj.is_final, "colours": JOB_COLOURS}
        context["left"] = left_behind(obj)
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("many/<str:verb>/", wrap(self.many_view), name="runtime_jobs_job_many"),
            path("<path:object_id>/log/", wrap(self.log_view), name="runtime_jobs_job_log"),
            *super().get_urls(),
        ]

    def log_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        """What was printed after `?after=`: the page's script asks every two seconds while the job runs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = self._found(request, object_id)
        return JsonResponse(asdict(log.after(job, request.GET.get("after", ""))))

    def _found(self, request: HttpRequest, object_id: str) -> Job:
        job = self.get_object(request, object_id)
        if job is None:
            raise Http404
        return job

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Only what makes sense for the job as it is; the verb has the last word."""
        fitting = available_actions(self.get_object(request, object_id))
        return [button for button in super().get_actions_detail(request, object_id) if button.path in fitting]

    @action(
        description="Cancel", url_path="cancel", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, CANCEL, [self._found(request, object_id).job_ulid])

    @action(
        description="Retry", url_path="retry", permissions=["operate"], icon="replay", variant=ActionVariant.PRIMARY
    )
    def retry(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, RETRY, [self._found(request, object_id).job_ulid])

    @action(description="Resend run", url_path="resend", permissions=["operate"], icon="upload")
    def resend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, RESEND, [self._found(request, object_id).job_ulid])

    @action(description="Revoke lease", url_path="revoke", permissions=["operate"], icon="remove_moderator")
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, REVOKE, [self._found(request, object_id).job_ulid])

    @action(description="Change priority", url_path="prioritize", permissions=["operate"], icon="swap_vert")
    def prioritize(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return confirm_and_run(self, request, PRIORITIZE, [self._found(request, object_id).job_ulid])

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._ask_for_many(request, CANCEL, queryset)

    @admin.action(description="Retry", permissions=["operate"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._ask_for_many(request, RETRY, queryset)

    @admin.action(description="Resend run", permissions=["operate"])
    def resend_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._ask_for_many(request, RESEND, queryset)

    @admin.action(description="Revoke lease", permissions=["operate"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._ask_for_many(request, REVOKE, queryset)

    @admin.action(description="Change priority", permissions=["operate"])
    def prioritize_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._ask_for_many(request, PRIORITIZE, queryset)

    def _ask_for_many(self, request: HttpRequest, verb: JobAction, queryset: QuerySet[Job]) -> HttpResponse | None:
        """On to a page of its own: the list's filters must not drop a job that has moved on meanwhile unsaid."""
        chosen = list(queryset.values_list("job_ulid", flat=True)[: LIMIT + 1])
        if len(chosen) > LIMIT:
            messages.error(request, f"At most {LIMIT} jobs at a time.")
            return None
        there = reverse("admin:runtime_jobs_job_many", args=[verb.name])
        query = [("job", job_ulid) for job_ulid in chosen] + [("_changelist_filters", request.GET.urlencode())]
        return HttpResponseRedirect(f"{there}?{urlencode(query)}")

    def many_view(self, request: HttpRequest, verb: str) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        if verb not in ACTIONS:
            raise Http404
        return confirm_and_run(self, request, ACTIONS[verb], request.GET.getlist("job"))
