"""JSON of notification rules. Pure functions: they run no query."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.webhooks.models import NotificationRule
from runtime_jobs.priorities import PRIORITIES, priority_name


def serialize_rule(rule: NotificationRule) -> dict[str, Any]:
    """Return a rule. Its organization and webhook were read with it."""
    return {
        "rule_id": rule.rule_ulid,
        "org_slug": rule.organization.slug,
        "name": rule.name,
        "is_enabled": rule.is_enabled,
        "event_types": list(rule.event_types),
        "job_types": list(rule.job_types),
        "projects": list(rule.projects),
        "failure_classes": list(rule.failure_classes),
        "priority_from": None if rule.priority_from is None else priority_name(rule.priority_from),
        "webhook_id": rule.webhook.webhook_ulid if rule.webhook else None,
        "recipients": list(rule.recipients),
        "gather_seconds": rule.gather_seconds,
        "updated_by": serialize_actor(rule.updated_by),
        "created_at": format_timestamp(rule.created_at),
        "updated_at": format_timestamp(rule.updated_at),
    }


def terms_of(validated: dict[str, Any]) -> dict[str, Any]:
    """Return the members of `RuleTerms` that a validated body has: names of priorities become numbers."""
    terms = {name: value for name, value in validated.items() if name != "webhook_id"}
    if "webhook_id" in validated:
        terms["webhook_ulid"] = validated["webhook_id"]
    if terms.get("priority_from") is not None:
        terms["priority_from"] = PRIORITIES[terms["priority_from"]]
    for name in ("event_types", "job_types", "projects", "failure_classes", "recipients"):
        if name in terms:
            terms[name] = list(dict.fromkeys(terms[name]))
    return terms
