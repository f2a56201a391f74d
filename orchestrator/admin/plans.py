"""Plans: what organizations may have."""

from django.contrib import admin
from unfold.decorators import display

from orchestrator.admin.recording import Recorded
from runtime_jobs.models import Plan
from runtime_jobs.priorities import name_of


@admin.register(Plan)
class PlanAdmin(Recorded):
    noun = "plan"
    fixed = ("name",)
    list_display = ["name", "shown_priority", "shown_at_once", "one_per_address", "weight", "max_timeout_seconds"]
    search_fields = ["name__startswith"]
    ordering = ["-priority", "name"]

    @display(description="Priority", ordering="priority")
    def shown_priority(self, plan: Plan) -> str:
        name = name_of(plan.priority)
        return name if name == str(plan.priority) else f"{name} ({plan.priority})"

    @display(description="Jobs at once", ordering="max_active")
    def shown_at_once(self, plan: Plan) -> str:
        return "any number" if plan.max_active is None else str(plan.max_active)
