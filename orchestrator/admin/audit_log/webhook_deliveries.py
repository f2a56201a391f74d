"""The webhook deliveries that the server received, with their outcome, read-only."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import OrganizationFilter, ReceivedFilter, choice_filter, exact_filter
from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from runtime_jobs.models import Batch, Job

COLOURS = {"created": "success", "accepted": "success", "duplicate": "info", "ignored": "default", "refused": "warning"}


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(LargeTableAdmin):
    """Displays webhook deliveries."""

    list_display = ["time", "event_and_action", "repository", "project", "outcome_badge", "reason", "job_link"]
    list_filter = [
        OrganizationFilter,
        exact_filter("repository", "repository"),
        choice_filter("outcome", "outcome", Outcome.choices),
        ReceivedFilter,
    ]
    ordering = ["-id"]
    fields = ["time", "delivery", "event_and_action", "repository", "commit", "project"]
    fields += ["outcome_badge", "reason", "batch_link", "job_link", "source_ip"]
    time = formatting.timestamp_column("received_at", "Received")
    delivery = formatting.value_column("delivery_id", "Delivery id")
    commit = formatting.value_column("git_commit", "Commit")
    source_ip = formatting.value_column("source_address", "Source IP")

    @display(description="Event")
    def event_and_action(self, delivery: WebhookDelivery) -> SafeString:
        number = f" #{delivery.pull_request_number}" if delivery.pull_request_number else ""
        return formatting.two_lines(f"{delivery.event}{number}", delivery.action)

    @display(description="Project")
    def project(self, delivery: WebhookDelivery) -> str:
        return f"{delivery.org_slug}/{delivery.project_slug}" if delivery.org_slug else formatting.NO_VALUE

    @display(description="Outcome", label=COLOURS)
    def outcome_badge(self, delivery: WebhookDelivery) -> str:
        return delivery.outcome

    @display(description="Batch")
    def batch_link(self, delivery: WebhookDelivery) -> SafeString | str:
        if not delivery.batch_ulid:
            return formatting.NO_VALUE
        return formatting.link(formatting.change_url(Batch, delivery.batch_ulid), formatting.code(delivery.batch_ulid))

    @display(description="Job")
    def job_link(self, delivery: WebhookDelivery) -> SafeString | str:
        if delivery.job_ulid is None:
            return formatting.NO_VALUE
        return formatting.link(formatting.change_url(Job, delivery.job_ulid), formatting.code(delivery.job_ulid))
