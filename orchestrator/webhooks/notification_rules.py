"""Notification rules: created, changed and deleted."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.conf import settings

from leases.advisory_locks import WEBHOOKS_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.managed_rows import require_room
from orchestrator.core.operator_events import record_change_of, record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.webhooks.models import NotificationRule, Webhook, WebhookStatus
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.models import Membership, Organization

MAX_RULES: Final = 100  # of an organization
NO_RULE: Final = "There is no such notification rule, or you may not see it."


@dataclass(frozen=True)
class RuleTerms:
    """The conditions of a rule, and where its notifications are sent: to a webhook, or to recipients of mail."""

    name: str
    event_types: Sequence[str]
    is_enabled: bool = True
    job_types: Sequence[str] = ()
    projects: Sequence[str] = ()
    failure_classes: Sequence[str] = ()
    priority_from: int | None = None
    webhook_ulid: str | None = None
    recipients: Sequence[str] = ()
    gather_seconds: int = 60


@operation
def create_notification_rule(
    _: UnitOfWork,
    *,
    organization: Organization,
    terms: RuleTerms,
    cause: Cause,
    idempotency: IdempotentRequest | None = None,
) -> tuple[NotificationRule, bool]:
    """Create a rule. It applies to events that occur from now on.

    Args:
        organization: The organization whose events it concerns.
        terms: The conditions and the receiver.
        idempotency: The key of the request. A repetition returns the rule of the first one.

    Returns:
        The rule, and whether it is new.

    Raises:
        Invalid: The receiver does not exist, or mail may not be sent to it.
        ResourceConflict: The name is taken, or the organization has as many rules as it may have.
        NotFound: The rule that an earlier request with this key has created was deleted.
    """
    advisory_xact_lock(WEBHOOKS_OF_ORGANIZATION, organization.pk)
    created_at = cause.now or database_now()
    rule = NotificationRule(organization=organization, created_at=created_at)
    if idempotency and (first := idempotency.bind(rule.rule_ulid, now=created_at)) != rule.rule_ulid:
        return find_notification_rule(first), False
    require_room(organization.notification_rules.all(), MAX_RULES)
    _set_terms(rule, terms)
    rule.save_by(cause.actor, created_at)
    record_event_of(rule, "created", cause.at(created_at), after=_facts(rule))
    return rule, True


@operation
def change_notification_rule(
    _: UnitOfWork,
    *,
    rule_ulid: str,
    changes: dict[str, Any],
    cause: Cause,
) -> NotificationRule:
    """Change the terms of a rule. Events that were gathered before are sent as the rule says then.

    Args:
        changes: Members of `RuleTerms`. A webhook replaces recipients, and recipients replace a webhook.

    Raises:
        NotFound: The rule does not exist.
        Invalid: The receiver does not exist, or mail may not be sent to it.
        ResourceConflict: The name is taken.
    """
    organization_id = find_notification_rule(rule_ulid).organization_id
    advisory_xact_lock(WEBHOOKS_OF_ORGANIZATION, organization_id)
    rule = find_notification_rule(rule_ulid)
    changed_at = cause.now or database_now()
    before, terms = _facts(rule), asdict(_terms_of(rule))
    if "webhook_ulid" in changes and "recipients" not in changes:
        terms["recipients"] = ()
    if "recipients" in changes and "webhook_ulid" not in changes:
        terms["webhook_ulid"] = None
    _set_terms(rule, RuleTerms(**terms | changes))
    rule.save_by(cause.actor, changed_at)
    record_change_of(rule, cause.at(changed_at), before=before, after=_facts(rule))
    return rule


@operation
def delete_notification_rule(
    _: UnitOfWork,
    *,
    rule_ulid: str,
    cause: Cause,
) -> None:
    """Delete a rule, and the notifications that it has gathered.

    Raises:
        NotFound: The rule does not exist.
    """
    rule = find_notification_rule(rule_ulid)
    record_event_of(rule, "deleted", cause, before=_facts(rule))
    rule.delete()


def find_notification_rule(rule_ulid: str) -> NotificationRule:
    """Return a rule with its organization and webhook.

    Raises:
        NotFound: It does not exist.
    """
    rows = NotificationRule.objects.select_related("organization", "webhook__organization")
    rule = rows.filter(rule_ulid=rule_ulid).first()
    if rule is None:
        raise NotFound(NO_RULE)
    return rule


def permitted_recipients(rules: Sequence[NotificationRule]) -> dict[int, list[str]]:
    """Return the recipients of each rule to which its organization may send mail now, by the key of the rule.

    A person may have left the organization since the rule was stored.
    """
    members = _member_addresses({rule.organization_id for rule in rules if rule.recipients})
    return {
        rule.pk: [one for one in rule.recipients if _is_permitted(one, members[rule.organization_id])] for rule in rules
    }


def _member_addresses(organization_ids: Collection[int]) -> dict[int, set[str]]:
    """Return the addresses of the active members of each organization, in lower case."""
    found: dict[int, set[str]] = defaultdict(set)
    if organization_ids:
        rows = Membership.objects.filter(organization__in=organization_ids, user__is_active=True)
        for organization_id, address in rows.values_list("organization_id", "user__email"):
            found[organization_id] |= {address.lower()} - {""}
    return found


def _is_permitted(address: str, members: Collection[str]) -> bool:
    """Return whether mail may be sent to an address: strangers could receive mail from this server."""
    domains = {domain.lower() for domain in settings.NOTIFICATION_DOMAINS}
    return address.lower() in members or address.lower().rpartition("@")[2] in domains


def _terms_of(rule: NotificationRule) -> RuleTerms:
    return RuleTerms(
        name=rule.name,
        event_types=rule.event_types,
        is_enabled=rule.is_enabled,
        job_types=rule.job_types,
        projects=rule.projects,
        failure_classes=rule.failure_classes,
        priority_from=rule.priority_from,
        webhook_ulid=rule.webhook.webhook_ulid if rule.webhook else None,
        recipients=rule.recipients,
        gather_seconds=rule.gather_seconds,
    )


def _set_terms(rule: NotificationRule, terms: RuleTerms) -> None:
    _require_receiver(rule.organization, terms)
    same_name = NotificationRule.objects.filter(organization=rule.organization, name=terms.name).exclude(pk=rule.pk)
    if same_name.exists():
        raise ResourceConflict(f"The organization has a notification rule with the name {terms.name} already.")
    rule.name, rule.is_enabled = terms.name, terms.is_enabled
    rule.event_types, rule.job_types = list(terms.event_types), list(terms.job_types)
    rule.projects, rule.failure_classes = list(terms.projects), list(terms.failure_classes)
    rule.priority_from, rule.gather_seconds = terms.priority_from, terms.gather_seconds
    rule.recipients = list(terms.recipients)
    rule.webhook = _find_receiver(rule.organization, terms.webhook_ulid)


def _require_receiver(organization: Organization, terms: RuleTerms) -> None:
    if (terms.webhook_ulid is None) == (not terms.recipients):
        text = "Exactly one of webhook_id and recipients is required."
        raise Invalid({"webhook_id": [text], "recipients": [text]})
    if terms.recipients and not settings.EMAIL_HOST:
        raise Invalid({"recipients": ["This installation sends no mail: EMAIL_HOST is not set."]})
    members = _member_addresses([organization.pk])[organization.pk]
    if refused := [one for one in terms.recipients if not _is_permitted(one, members)]:
        text = (
            "Mail is sent to members of the organization and to domains in NOTIFICATION_DOMAINS only. Not permitted: "
        )
        raise Invalid({"recipients": [text + ", ".join(refused)]})


def _find_receiver(organization: Organization, webhook_ulid: str | None) -> Webhook | None:
    if webhook_ulid is None:
        return None
    rows = organization.webhooks.exclude(status=WebhookStatus.DELETED).select_related("organization")
    webhook = rows.filter(webhook_ulid=webhook_ulid).first()
    if webhook is None:
        raise Invalid({"webhook_id": ["The organization has no such webhook."]})
    return webhook


def _facts(rule: NotificationRule) -> dict[str, Any]:
    facts = asdict(_terms_of(rule))
    return {name: list(value) if isinstance(value, list | tuple) else value for name, value in facts.items()}
