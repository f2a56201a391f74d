"""Alerts for what restricts jobs now: pauses, throttles, breakers, incidents, incident mode. All are bounded."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, Q, Value, When

from leases.models import Breaker, BreakerState, Limit, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from orchestrator.admin import formatting
from orchestrator.admin.limits.incident_mode import describe_mode
from orchestrator.admin.limits.labels import describe_temporary, scope_of
from orchestrator.incidents.models import Incident, IncidentMode
from runtime_jobs.models import Organization

MAX_SINGLE_ALERTS = 5  # the others are summarized by their number
MAX_ROWS = 100


@dataclass(frozen=True)
class Restrictions:
    """Rows behind the alerts. `limits` are pauses and throttles, those that affect all tenants first."""

    limits: list[Limit]
    breakers: list[Any]  # with `is_probing`
    incidents: list[Incident]
    modes: list[IncidentMode]


def current_restrictions(now: datetime) -> Restrictions:
    """Read the active restrictions, at most MAX_ROWS of each kind."""
    all_tenants_first = Case(When(scope__in=(LimitScope.POOL, LimitScope.JOB_TYPE), then=Value(0)), default=Value(1))
    active = Limit.objects.filter(Q(until=None) | Q(until__gt=now), kind__in=TEMPORARY_KINDS)
    breakers = Breaker.objects.exclude(state=BreakerState.CLOSED).with_probe().order_by("opened_at")
    incidents = Incident.objects.filter(resolved_at=None).order_by("opened_at")
    return Restrictions(
        list(active.order_by(all_tenants_first, "pk")[:MAX_ROWS]),
        list(breakers[:MAX_ROWS]),
        list(incidents[:MAX_ROWS]),
        list(IncidentMode.objects.filter(until__gt=now).order_by("until")[:MAX_ROWS]),
    )


def restriction_alerts(restrictions: Restrictions, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield each alert's text with the address of the list that contains its rows."""
    for limit in restrictions.limits[:MAX_SINGLE_ALERTS]:
        filters = {"kind": limit.kind, "scope": limit.scope, "key": limit.key}
        filters |= {"org_slug": limit.org_slug} if limit.org_slug else {}
        yield f"{_sentence_start(limit)}: {describe_temporary(limit)}", formatting.changelist_url(Limit, **filters)
    if (more := len(restrictions.limits) - MAX_SINGLE_ALERTS) > 0:
        text = f"{_bounded(more)} more {'pause or throttle' if more == 1 else 'pauses or throttles'}."
        yield text, formatting.changelist_url(Limit, kind=["pause", "throttle"])
    yield from _breaker_alerts(restrictions, now)
    if count := len(restrictions.incidents):
        text = f"{_bounded(count)} open incident{'s' * (count != 1)}: {restrictions.incidents[0].summary}"
        yield text, formatting.changelist_url(Incident, state="open")
    for mode in restrictions.modes[:MAX_SINGLE_ALERTS]:
        address = formatting.changelist_url(Organization, q=mode.org_slug)
        yield f"Incident mode of {mode.org_slug} {describe_mode(mode)}", address


def _breaker_alerts(restrictions: Restrictions, now: datetime) -> Iterator[tuple[str, str]]:
    for breaker in restrictions.breakers[:MAX_SINGLE_ALERTS]:
        probe = f"half-open, {'one probe job is running' if breaker.is_probing else 'one job may start'}"
        if breaker.state == BreakerState.OPEN:
            probe = f"half-open {formatting.time_until(breaker.cool_until, now)}"
        text = f"Breaker open for {breaker.job_type} jobs of {breaker.org_slug}: too many failures; {probe}."
        yield text, formatting.changelist_url(Breaker, org_slug=breaker.org_slug, job_type=breaker.job_type)
    if (more := len(restrictions.breakers) - MAX_SINGLE_ALERTS) > 0:
        yield f"{_bounded(more)} more open breaker{'s' * (more != 1)}.", formatting.changelist_url(Breaker)


def _sentence_start(limit: Limit) -> str:
    """Capitalize the scope, but not a slug."""
    name = scope_of(limit)
    return name if limit.org_slug else name[0].upper() + name[1:]


def _bounded(count: int) -> str:
    return str(count) if count < MAX_ROWS - MAX_SINGLE_ALERTS else f"{MAX_ROWS - MAX_SINGLE_ALERTS}+"
