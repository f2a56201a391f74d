"""Outgoing webhooks: their state, and buttons that pause, activate, test, redeliver, delete. No page has a secret."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display

from orchestrator.admin import formatting
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import RelatedOrganizationFilter, choice_filter
from orchestrator.admin.managed_rows import ManagedRowAdmin
from orchestrator.core.cause import Cause
from orchestrator.webhooks import deliveries
from orchestrator.webhooks.models import Delivery, Webhook, WebhookStatus
from orchestrator.webhooks.operations import change_webhook, delete_webhook
from runtime_jobs.identifiers import is_id

COLOURS = {"active": "success", "paused": "warning", "disabled": "danger", "failing": "danger"}


WebhookStatusFilter = choice_filter(
    "status", "status", [(value, label) for value, label in WebhookStatus.choices if value != WebhookStatus.DELETED]
)


@admin.register(Webhook)
class WebhookAdmin(ManagedRowAdmin):
    """Displays webhooks; every change is a button."""

    list_display = ["identifier", "organization", "host", "status_badge", "failing", "events", "deliveries_link"]
    list_display_links = ["identifier"]
    list_filter = [WebhookStatusFilter, RelatedOrganizationFilter]
    list_select_related = ["organization"]
    fields = ["identifier", "organization", "url", "description", "status_badge", "reason", "failing", "events"]
    fields += ["types", "rotated", "deliveries_link", "dead_letters_link", "editor", "created", "updated"]
    name_field = "webhook_ulid"
    remove_text = "Nothing more is sent. Its notification rules are deleted, too."
    actions_detail = ["activate", "pause", "test", "redeliver_dead", "remove"]
    identifier = formatting.value_column("webhook_ulid", "Webhook")
    reason = formatting.value_column("status_reason", "Status reason")
    failing = formatting.age_column("failing_since", "Failing since")
    rotated = formatting.timestamp_column("former_secret_until", "Former secret until")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Webhook]:
        rows: QuerySet[Webhook] = super().get_queryset(request)
        return rows.exclude(status=WebhookStatus.DELETED)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Webhook | None:
        """Accept the public id as well: incidents contain only that one."""
        if is_id(object_id, "whk"):
            return self.get_queryset(request).filter(webhook_ulid=object_id).first()
        return super().get_object(request, object_id, from_field)

    def change_row(self, row: Webhook, changes: dict[str, Any], cause: Cause) -> Webhook:
        return change_webhook(webhook_ulid=row.webhook_ulid, changes=changes, cause=cause)

    def delete_row(self, row: Webhook, cause: Cause) -> None:
        delete_webhook(webhook_ulid=row.webhook_ulid, cause=cause)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer what is possible in the status. The operations check the status again."""
        webhook: Any = self.get_object(request, object_id)
        if webhook is None:
            return []
        offered = {"pause", "test", "redeliver"} if webhook.status == WebhookStatus.ACTIVE else {"activate"}
        buttons = super().get_actions_detail(request, object_id)
        return [button for button in buttons if button.path in offered | {"remove"}]

    @display(description="Host")
    def host(self, webhook: Webhook) -> str:
        return webhook.url.partition("://")[2].partition("/")[0]

    @display(description="Status", label=COLOURS)
    def status_badge(self, webhook: Webhook) -> str:
        return "failing" if webhook.failing_since and webhook.status == WebhookStatus.ACTIVE else webhook.status

    @display(description="Event types")
    def events(self, webhook: Webhook) -> str:
        return ", ".join(webhook.event_types) or "all"

    @display(description="Job types")
    def types(self, webhook: Webhook) -> str:
        return ", ".join(webhook.job_types) or "all"

    @display(description="Deliveries")
    def deliveries_link(self, webhook: Webhook) -> SafeString:
        address = formatting.changelist_url(Delivery, webhook__webhook_ulid=webhook.webhook_ulid)
        return formatting.link(address, "All deliveries")

    @display(description="Dead letters")
    def dead_letters_link(self, webhook: Webhook) -> SafeString:
        address = formatting.changelist_url(Delivery, webhook__webhook_ulid=webhook.webhook_ulid, status="dead")
        return formatting.link(address, "All dead letters")

    @action(description="Activate", url_path="activate", permissions=["operate"], icon="play_arrow")
    def activate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send deliveries again, as if the webhook had never failed."""
        text = "Deliveries are sent again, and its incident is resolved. Dead letters stay: redeliver them."
        act = self.change("is active", status="active")
        return confirm_for_row(self, request, object_id, act, button="Activate", description=text)

    @action(description="Pause", url_path="pause", permissions=["operate"], icon="pause")
    def pause(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send nothing until it is activated."""
        text = "Events that occur from now on, and deliveries that wait, become dead letters until it is activated."
        act = self.change("is paused", status="paused")
        return confirm_for_row(self, request, object_id, act, button="Pause", description=text)

    @action(description="Send test event", url_path="test", permissions=["operate"], icon="send")
    def test(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send an event of the type webhook.test."""

        def act(webhook: Webhook, cause: Cause) -> str:
            delivery = deliveries.send_test(webhook_ulid=webhook.webhook_ulid, cause=cause)
            return f"Delivery {delivery.delivery_ulid} is due now"

        return confirm_for_row(
            self,
            request,
            object_id,
            act,
            button="Send test event",
            description="Sends an event of the type webhook.test.",
        )

    @action(description="Redeliver dead letters", url_path="redeliver", permissions=["operate"], icon="replay")
    def redeliver_dead(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the dead letters again."""

        def act(webhook: Webhook, cause: Cause) -> str:
            result = deliveries.redeliver_many(webhook_ulid=webhook.webhook_ulid, since=None, cause=cause)
            more = "; there are more" if result.has_more else ""
            return f"{formatting.pluralize(result.number, 'delivery', 'deliveries')} due now{more}"

        text = "Sends up to 1,000 dead letters again, each under its former id, in the order of their creation."
        return confirm_for_row(self, request, object_id, act, button="Redeliver dead letters", description=text)
