"""The sidebar. Each entry is shown to users who may view its page."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

# Title, icon of the theme's font, app, model.
GROUPS: list[tuple[str, list[tuple[str, str, str, str]]]] = [
    (
        "Operations",
        [
            ("Jobs", "rocket_launch", "runtime_jobs", "job"),
            ("Batches", "stacks", "runtime_jobs", "batch"),
            ("Schedules", "schedule", "orchestrator", "schedule"),
            ("Bulk actions", "checklist", "orchestrator", "bulkaction"),
            ("Workflow runs", "account_tree", "runtime_jobs", "workflowrun"),
            ("Rejected workflows", "rule", "runtime_jobs", "rejectedworkflow"),
            ("Leases", "handshake", "leases", "lease"),
            ("Workers", "dns", "workers", "worker"),
            ("Runners", "sports_motorsports", "workers", "runner"),
            ("Workflow runners", "conveyor_belt", "workers", "actionsrunner"),
            ("Hardware specs", "memory", "workers", "hardwarespec"),
            ("Pools", "workspaces", "workers", "pool"),
            ("Quotas", "data_usage", "orchestrator", "quotaoverview"),
            ("Limits", "speed", "leases", "limit"),
            ("Breakers", "electrical_services", "leases", "breaker"),
            ("Incidents", "emergency_home", "orchestrator", "incident"),
            ("Replays", "fact_check", "orchestrator", "replay"),
            ("Runs", "radar", "orchestrator", "run"),
            ("Reports", "query_stats", "orchestrator", "report"),
            ("Artifacts", "inventory_2", "runtime_jobs", "storedartifact"),
            ("Cache entries", "cached", "runtime_jobs", "cacheentry"),
            ("Webhooks", "webhook", "orchestrator", "webhook"),
            ("Deliveries", "outgoing_mail", "orchestrator", "delivery"),
            ("Notifications", "notifications", "orchestrator", "notificationrule"),
            ("Housekeeping", "mop", "orchestrator", "housekeepingtask"),
        ],
    ),
    (
        "Audit log",
        [
            ("Operator actions", "history_edu", "runtime_jobs", "operatorevent"),
            ("Job events", "timeline", "runtime_jobs", "jobevent"),
            ("Evidence", "verified", "orchestrator", "auditbundle"),
            ("Signing keys", "signature", "orchestrator", "signingkey"),
            ("GitHub deliveries", "call_received", "orchestrator", "webhookdelivery"),
        ],
    ),
    (
        "Tenants",
        [
            ("Organizations", "apartment", "runtime_jobs", "organization"),
            ("Projects", "folder_code", "runtime_jobs", "project"),
            ("Repositories", "source", "runtime_jobs", "repository"),
            ("Plans", "sell", "runtime_jobs", "plan"),
            ("Members", "badge", "runtime_jobs", "membership"),
            ("API tokens", "key", "runtime_jobs", "apitoken"),
            ("Personal keys", "vpn_key", "runtime_jobs", "personalkey"),
            ("Secrets", "lock", "runtime_jobs", "secret"),
            ("Variables", "data_object", "runtime_jobs", "variable"),
            ("Usage", "receipt_long", "runtime_jobs", "usagerecord"),
        ],
    ),
    ("Access", [("Users", "person", "auth", "user"), ("Groups", "group", "auth", "group")]),
]


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Build the groups of the sidebar for the theme, which calls this function by name (`config/admin_theme.py`)."""
    dashboard = {"title": "Dashboard", "icon": "monitor_heart", "link": reverse("admin:index")}
    groups = ({"title": title, "separator": True, "items": _items(request, items)} for title, items in GROUPS)
    return [{"items": [dashboard]}, *(group for group in groups if group["items"])]


def _items(request: HttpRequest, items: list[tuple[str, str, str, str]]) -> list[dict[str, Any]]:
    return [
        {"title": title, "icon": icon, "link": reverse(f"admin:{app}_{model}_changelist")}
        for title, icon, app, model in items
        if admin.site.get_model_admin(apps.get_model(app, model)).has_view_permission(request)
    ]
