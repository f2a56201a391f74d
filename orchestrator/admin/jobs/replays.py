"""Replays with their verdicts. The button that requests one is on the page of a job."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import CreatedFilter, JobTypeFilter, OrganizationFilter
from orchestrator.admin.labels import stored_actor_label
from orchestrator.evidence.replay_models import Replay, ReplayVerdict
from runtime_jobs.models import Job

PENDING = "pending"  # no verdict yet
COLOURS: dict[str, str] = {
    ReplayVerdict.MATCH: "success",
    ReplayVerdict.DIVERGED: "danger",
    ReplayVerdict.UNVERIFIABLE: "warning",
    PENDING: "info",
}
MAX_VALUE_LENGTH = 500


class VerdictFilter(DropdownFilter):
    """Filters by verdict. `pending`: the replay has not ended, or was not compared yet."""

    title = "verdict"
    parameter_name = "verdict"
    options: ClassVar = [*ReplayVerdict.choices, (PENDING, "Pending")]

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return self.options

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Replay]) -> QuerySet[Replay]:
        if self.value() == PENDING:
            return queryset.filter(verdict=None)
        return queryset.filter(verdict=self.value()) if self.value() in ReplayVerdict.values else queryset


@admin.register(Replay)
class ReplayAdmin(LargeTableAdmin):
    """Displays replays, newest first."""

    list_display = ["age", "verdict_badge", "tenant", "both_jobs", "sealed", "place"]
    list_display_links = ["age"]
    list_filter = [VerdictFilter, OrganizationFilter, JobTypeFilter, CreatedFilter]
    ordering = ["-id"]
    fields = ["verdict_badge", "explanation", "job", "original", "organization", "job_type_text", "sealed"]
    fields += ["requester", "reason_text", "created", "decided", "noted"]
    organization = formatting.value_column("org_slug", "Organization")
    job_type_text = formatting.value_column("job_type", "Job type")
    age = formatting.age_column("created_at", "Requested")
    created = formatting.timestamp_column("created_at", "Requested")
    decided = formatting.timestamp_column("decided_at", "Compared")
    reason_text = formatting.value_column("reason", "Reason")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Replay]:
        return super().get_queryset(request).defer("expected", "found")

    @display(description="Verdict", label=COLOURS)
    def verdict_badge(self, replay: Replay) -> str:
        return replay.verdict or PENDING

    @display(description="Organization, job type")
    def tenant(self, replay: Replay) -> SafeString:
        return formatting.two_lines(replay.org_slug, replay.job_type)

    @display(description="Replay, job")
    def both_jobs(self, replay: Replay) -> SafeString:
        return formatting.two_lines(self.job(replay), self.original(replay))

    @display(description="Replay")
    def job(self, replay: Replay) -> SafeString:
        return formatting.link(formatting.change_url(Job, replay.job_ulid), replay.job_ulid)

    @display(description="Job")
    def original(self, replay: Replay) -> SafeString:
        return formatting.link(formatting.change_url(Job, replay.replay_of_ulid), replay.replay_of_ulid)

    @display(description="Sealed", boolean=True)
    def sealed(self, replay: Replay) -> bool:
        return replay.is_sealed

    @display(description="First difference")
    def place(self, replay: Replay) -> str:
        return replay.difference["path"] if replay.difference else formatting.NO_VALUE

    @display(description="Requested by")
    def requester(self, replay: Replay) -> str:
        return stored_actor_label(replay.requested_by)

    @display(description="Explanation")
    def explanation(self, replay: Replay) -> SafeString | str:
        """Return the first difference with both values, and why the replay verifies nothing."""
        rows = [("Reason", reason) for reason in replay.reasons or replay.caveats]
        return _lines([*rows, *(_difference_rows(replay.difference) if replay.difference else [])])

    @display(description="Differences that do not count")
    def noted(self, replay: Replay) -> SafeString | str:
        return _lines([row for note in replay.notes for row in _difference_rows(note)])


def _difference_rows(difference: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name.capitalize(), str(difference[name])[:MAX_VALUE_LENGTH]) for name in ("path", "expected", "found")]


def _lines(rows: list[tuple[str, str]]) -> SafeString | str:
    joined = format_html_join("", '<span class="fact"><small>{}</small> {}</span>', rows)
    return joined or formatting.NO_VALUE
