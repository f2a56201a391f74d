"""Pools: sets of like workers."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import shown
from orchestrator.admin.recording import Recorded
from runtime_jobs.models import Job
from workers.models import Pool, Worker
from workers.registry.models import WorkerState


@admin.register(Pool)
class PoolAdmin(Recorded):
    noun = "pool"
    fixed = ("slug",)
    list_display = ["slug", "description", "least_isolation", "trusts_lease_ids", "workers", "waiting"]
    search_fields = ["slug__startswith"]
    ordering = ["slug"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        there = Count("workers", filter=~Q(workers__state=WorkerState.REVOKED))
        return super().get_queryset(request).annotate(there=there)

    @display(description="Workers")
    def workers(self, pool: Any) -> SafeString:
        return shown.link(shown.list_of(Worker, pool__slug=pool.slug), pool.there)

    @display(description="Waiting")
    def waiting(self, pool: Pool) -> SafeString:
        return shown.link(shown.list_of(Job, pool=pool.slug, state="queued"), "its queue")
