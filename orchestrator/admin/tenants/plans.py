"""Plans: what organizations may have."""

from django.contrib import admin
from unfold.decorators import display

from orchestrator.admin.audited import AuditedAdmin
from runtime_jobs.models import Plan
from runtime_jobs.priorities import priority_name


@admin.register(Plan)
class PlanAdmin(AuditedAdmin):
    noun = "plan"
    fixed = ("name",)
    list_display = [
        *("name", "shown_priority", "shown_at_once", "shown_queued", "shown_rate"),
        *("one_per_address", "weight", "max_timeout_seconds"),
    ]
    search_fields = ["name__startswith"]
    ordering = ["-priority", "name"]

    @display(description="Priority", ordering="priority")
    def shown_priority(self, plan: Plan) -> str:
        name = priority_name(plan.priority)
        return name if name == str(plan.priority) else f"{name} ({plan.priority})"

    @display(description="Queued jobs", ordering="max_queued")
    def shown_queued(self, plan: Plan) -> str:
        return "any number" if plan.max_queued is None else str(plan.max_queued)

    @display(description="Submit rate", ordering="submits_per_minute")
    def shown_rate(self, plan: Plan) -> str:
        rate = plan.submits_per_minute
        return "any" if rate is None else f"{rate} a minute, burst {plan.submit_burst}"

    @display(description="Jobs at once", ordering="max_active")
    def shown_at_once(self, plan: Plan) -> str:
        return "any number" if plan.max_active is None else str(plan.max_active)
