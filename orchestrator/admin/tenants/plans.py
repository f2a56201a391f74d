"""Plans: priority, concurrency, quotas and longest timeout of organizations."""

from django.contrib import admin
from unfold.decorators import display

from orchestrator.admin.audited import AuditedAdmin
from runtime_jobs.models import Plan
from runtime_jobs.priorities import priority_name


@admin.register(Plan)
class PlanAdmin(AuditedAdmin):
    """Edits plans."""

    audit_name = "plan"
    immutable_fields = ("name",)
    list_display = [
        *("name", "priority_text", "max_concurrency", "max_queued_jobs", "submit_rate"),
        *("one_per_address", "weight", "default_timeout_seconds", "max_timeout_seconds"),
    ]
    search_fields = ["name__startswith"]
    search_help_text = "Name (prefix)"
    ordering = ["-priority", "name"]

    @display(description="Priority", ordering="priority")
    def priority_text(self, plan: Plan) -> str:
        name = priority_name(plan.priority)
        return name if name == str(plan.priority) else f"{name} ({plan.priority})"

    @display(description="Max concurrency", ordering="max_active")
    def max_concurrency(self, plan: Plan) -> str:
        return _or_unlimited(plan.max_active)

    @display(description="Max queued jobs", ordering="max_queued")
    def max_queued_jobs(self, plan: Plan) -> str:
        return _or_unlimited(plan.max_queued)

    @display(description="Submit rate", ordering="submits_per_minute")
    def submit_rate(self, plan: Plan) -> str:
        if plan.submits_per_minute is None:
            return "unlimited"
        return f"{plan.submits_per_minute:,} per minute, burst {plan.submit_burst:,}"


def _or_unlimited(number: int | None) -> str:
    return "unlimited" if number is None else f"{number:,}"
