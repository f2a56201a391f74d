"""Deliveries to webhooks and by mail, with their tries; a button sends one again."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import CreatedFilter, OrganizationFilter, choice_filter, exact_filter
from orchestrator.core.cause import Cause
from orchestrator.webhooks import deliveries
from orchestrator.webhooks.models import Delivery, DeliveryStatus, Webhook

COLOURS = {"pending": "info", "succeeded": "success", "dead": "danger"}
TRIES_DISPLAYED = 20


@admin.register(Delivery)
class DeliveryAdmin(LargeTableAdmin):
    """Displays deliveries, newest first."""

    list_display = ["created", "organization", "event", "receiver", "status_badge", "tries", "error", "next_try"]
    list_display_links = ["created"]
    list_filter = [
        choice_filter("status", "status", DeliveryStatus.choices),
        OrganizationFilter,
        exact_filter("webhook", "webhook__webhook_ulid"),
        exact_filter("event type", "event_type"),
        CreatedFilter,
    ]
    list_select_related = ["webhook"]
    ordering = ["-id"]
    fields = ["delivery_id", "organization", "event", "event_uuid", "receiver", "status_badge", "tries", "error"]
    fields += ["created", "next_try", "finished", "tried", "content"]
    actions_detail = ["redeliver"]
    delivery_id = formatting.value_column("delivery_ulid", "Delivery")
    organization = formatting.value_column("org_slug", "Organization")
    created = formatting.timestamp_column("created_at", "Created")
    next_try = formatting.timestamp_column("due_at", "Next try")
    finished = formatting.timestamp_column("finished_at", "Finished")
    error = formatting.value_column("last_error", "Last error")
    event_uuid = formatting.value_column("event_id", "Event id")

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("orchestrator.change_webhook")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer to send again what has ended. A mail has no receiver that would ignore a repetition."""
        delivery: Any = self.get_object(request, object_id)
        has_ended = delivery is not None and delivery.webhook is not None and delivery.status != DeliveryStatus.PENDING
        return super().get_actions_detail(request, object_id) if has_ended else []

    @display(description="Event")
    def event(self, delivery: Delivery) -> SafeString:
        return formatting.two_lines(delivery.event_type, delivery.job_type)

    @display(description="Receiver")
    def receiver(self, delivery: Delivery) -> SafeString | str:
        if delivery.webhook is None:
            return ", ".join(delivery.recipients)
        return formatting.link(formatting.change_url(Webhook, delivery.webhook.pk), delivery.webhook.webhook_ulid)

    @display(description="Status", label=COLOURS)
    def status_badge(self, delivery: Delivery) -> str:
        return delivery.status

    @display(description="Results")
    def tried(self, delivery: Delivery) -> SafeString | str:
        tries = delivery.all_tries.order_by("-number")[:TRIES_DISPLAYED]
        rows = ((one.number, formatting.format_utc(one.started_at), one.sentence, one.answer[:500]) for one in tries)
        return format_html_join("", "<p>{}. {}: {}</p><pre>{}</pre>", rows) or formatting.NO_VALUE

    @display(description="Body")
    def content(self, delivery: Delivery) -> SafeString:
        return formatting.code(delivery.body)

    @action(description="Send again", url_path="redeliver", permissions=["operate"], icon="replay")
    def redeliver(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the delivery again under its former id."""

        def act(delivery: Delivery, cause: Cause) -> str:
            webhook_ulid = delivery.webhook.webhook_ulid if delivery.webhook else ""
            deliveries.redeliver(webhook_ulid=webhook_ulid, delivery_ulid=delivery.delivery_ulid, cause=cause)
            return f"{delivery} is due now"

        text = "Sends the same body under the same id. A receiver that has it already ignores it."
        title = "Send {row} again"
        return confirm_for_row(self, request, object_id, act, button="Send again", description=text, title=title)
