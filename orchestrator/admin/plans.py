"""Plans: what organizations may have."""

from django.contrib import admin

from orchestrator.admin.recording import Recorded
from runtime_jobs.models import Plan


@admin.register(Plan)
class PlanAdmin(Recorded):
    noun = "plan"
    fixed = ("name",)
    list_display = ["name", "priority", "max_timeout_seconds"]
    search_fields = ["name__startswith"]
    ordering = ["-priority", "name"]
