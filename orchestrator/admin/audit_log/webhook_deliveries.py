"""What came through webhooks, and what became of it."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import days, exactly, one_of
from orchestrator.models import WebhookDelivery
from orchestrator.protocols.github.models import Outcome
from runtime_jobs.models import Job

COLOURS = {"created": "success", "duplicate": "info", "ignored": "default", "refused": "warning"}


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(LargeTableAdmin):
    list_display = ["time", "shown_event", "repository", "project", "shown_outcome", "reason", "shown_job"]
    list_filter = [
        exactly("org_slug", "organization"),
        exactly("repository", "repository"),
        one_of("outcome", "outcome", list(Outcome.choices)),
        days("received_at", "time"),
    ]
    ordering = ["-id"]
    fields = ["time", "delivery_id", "shown_event", "repository", "git_commit", "pull_request_number", "project"]
    fields += ["shown_outcome", "reason", "batch_ulid", "shown_job", "source_address"]
    time = formatting.time_of("received_at", "Time")

    @display(description="Event")
    def shown_event(self, delivery: WebhookDelivery) -> SafeString:
        number = f" #{delivery.pull_request_number}" if delivery.pull_request_number else ""
        return formatting.two_lines(f"{delivery.event}{number}", delivery.action)

    @display(description="Project")
    def project(self, delivery: WebhookDelivery) -> str:
        return f"{delivery.org_slug}/{delivery.project_slug}" if delivery.org_slug else "-"

    @display(description="Outcome", label=COLOURS)
    def shown_outcome(self, delivery: WebhookDelivery) -> str:
        return delivery.outcome

    @display(description="Job")
    def shown_job(self, delivery: WebhookDelivery) -> SafeString | str:
        if delivery.job_ulid is None:
            return "-"
        return formatting.link(formatting.change_url(Job, delivery.job_ulid), formatting.code(delivery.job_ulid))
