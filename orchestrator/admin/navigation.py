"""The sidebar: what an operator needs at night comes first. Each entry is shown to those who may see its page."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

GROUPS: list[tuple[str, list[tuple[str, str, str, str]]]] = [
    (
        "Work",
        [
            ("Jobs", "rocket_launch", "runtime_jobs", "job"),
            ("Batches", "stacks", "runtime_jobs", "batch"),
            ("Leases", "handshake", "leases", "lease"),
            ("Workers", "dns", "workers", "worker"),
            ("Pools", "workspaces", "workers", "pool"),
            ("Limits", "speed", "leases", "limit"),
            ("Breakers", "electrical_services", "leases", "breaker"),
            ("Incidents", "emergency_home", "orchestrator", "incident"),
            ("Runs", "radar", "orchestrator", "run"),
        ],
    ),
    (
        "Trail",
        [
            ("Job events", "timeline", "runtime_jobs", "jobevent"),
            ("Webhook deliveries", "webhook", "orchestrator", "webhookdelivery"),
            ("Operator events", "history_edu", "runtime_jobs", "operatorevent"),
        ],
    ),
    (
        "Tenants",
        [
            ("Organizations", "apartment", "runtime_jobs", "organization"),
            ("Projects", "folder_code", "runtime_jobs", "project"),
            ("Plans", "sell", "runtime_jobs", "plan"),
            ("Members", "badge", "runtime_jobs", "membership"),
            ("API tokens", "key", "runtime_jobs", "apitoken"),
        ],
    ),
    ("People", [("Users", "person", "auth", "user"), ("Groups", "group", "auth", "group")]),
]


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    first = {"title": "Is anything wrong?", "icon": "monitor_heart", "link": reverse("admin:index")}
    groups = ({"title": title, "separator": True, "items": _items(request, items)} for title, items in GROUPS)
    return [{"items": [first]}, *(group for group in groups if group["items"])]


def _items(request: HttpRequest, items: list[tuple[str, str, str, str]]) -> list[dict[str, Any]]:
    return [
        {"title": title, "icon": icon, "link": reverse(f"admin:{app}_{model}_changelist")}
        for title, icon, app, model in items
        if request.user.has_perm(f"{app}.view_{model}")
    ]
