"""Notification rules: which events are sent to whom; buttons switch one on or off and delete it."""

from typing import Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display

from orchestrator.admin import formatting
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import RelatedOrganizationFilter
from orchestrator.admin.managed_rows import ManagedRowAdmin
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import IncidentMode
from orchestrator.webhooks import notification_rules
from orchestrator.webhooks.models import NotificationRule, Webhook
from runtime_jobs.priorities import priority_name


@admin.register(NotificationRule)
class NotificationRuleAdmin(ManagedRowAdmin):
    """Displays notification rules; every change is a button."""

    list_display = ["name", "organization", "status_badge", "events", "conditions", "receiver", "gathered_for"]
    list_filter = [RelatedOrganizationFilter]
    list_select_related = ["organization", "webhook"]
    fields = ["identifier", "name", "organization", "status_badge", "events", "conditions", "receiver"]
    fields += ["gathered_for", "editor", "created", "updated"]
    remove_text = "Gathered events are deleted, too."
    actions_detail = ["enable", "disable", "remove"]
    identifier = formatting.value_column("rule_ulid", "Rule")

    def get_queryset(self, request: HttpRequest) -> QuerySet[NotificationRule]:
        rows: QuerySet[NotificationRule] = super().get_queryset(request)
        mode = IncidentMode.objects.filter(org_slug=OuterRef("organization__slug"), until__gt=Now())
        return rows.annotate(is_in_incident_mode=Exists(mode))

    def change_row(self, row: NotificationRule, changes: dict[str, Any], cause: Cause) -> NotificationRule:
        return notification_rules.change_notification_rule(rule_ulid=row.rule_ulid, changes=changes, cause=cause)

    def delete_row(self, row: NotificationRule, cause: Cause) -> None:
        notification_rules.delete_notification_rule(rule_ulid=row.rule_ulid, cause=cause)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer to switch an enabled rule off, and another one on."""
        rule: Any = self.get_object(request, object_id)
        other = "enable" if rule is not None and rule.is_enabled else "disable"
        return [button for button in super().get_actions_detail(request, object_id) if button.path != other]

    @display(description="Status", label={"enabled": "success", "disabled": "default"})
    def status_badge(self, rule: NotificationRule) -> str:
        return "enabled" if rule.is_enabled else "disabled"

    @display(description="Event types")
    def events(self, rule: NotificationRule) -> str:
        return ", ".join(rule.event_types)

    @display(description="Conditions")
    def conditions(self, rule: NotificationRule) -> str:
        parts = [*rule.job_types, *rule.projects, *rule.failure_classes]
        if rule.priority_from is not None:
            parts.append(f"priority from {priority_name(rule.priority_from)}")
        return ", ".join(parts) or formatting.NO_VALUE

    @display(description="Receiver")
    def receiver(self, rule: NotificationRule) -> SafeString | str:
        if rule.webhook is None:
            return ", ".join(rule.recipients)
        return formatting.link(formatting.change_url(Webhook, rule.webhook.pk), rule.webhook.webhook_ulid)

    @display(description="Gathered for")
    def gathered_for(self, rule: Any) -> str:
        if rule.is_in_incident_mode:
            return "Not gathered: incident mode"
        return formatting.format_duration(rule.gather_seconds) if rule.gather_seconds else formatting.NO_VALUE

    @action(description="Enable", url_path="enable", permissions=["operate"], icon="notifications_active")
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Switch the rule on."""
        act, text = self.change("changed", is_enabled=True), "Events that occur from now on are sent."
        return confirm_for_row(self, request, object_id, act, button="Enable", description=text)

    @action(description="Disable", url_path="disable", permissions=["operate"], icon="notifications_off")
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Switch the rule off."""
        act, text = self.change("changed", is_enabled=False), "Gathered events are still sent."
        return confirm_for_row(self, request, object_id, act, button="Disable", description=text)
