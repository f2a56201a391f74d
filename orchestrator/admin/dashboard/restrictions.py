"""What is held back right now, for the first page: pauses, throttles, open breakers, incidents. No list is endless."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, Q, Value, When

from leases.models import Breaker, BreakerState, Limit, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from orchestrator.admin import formatting
from orchestrator.admin.limits.labels import whose
from orchestrator.admin.limits.pause import sentence
from orchestrator.models import Incident

SAID = 5  # one by one; of the others how many
LOOKED_AT = 100


@dataclass(frozen=True)
class Restriction:
    """`limits`: pauses and throttles, those of all tenants first."""

    limits: list[Limit]
    breakers: list[Breaker]
    incidents: list[Incident]


def look(now: datetime) -> Restriction:
    of_all = Case(When(scope__in=(LimitScope.POOL, LimitScope.JOB_TYPE), then=Value(0)), default=Value(1))
    limits = Limit.objects.filter(Q(until=None) | Q(until__gt=now), kind__in=TEMPORARY_KINDS).order_by(of_all, "pk")
    breakers = Breaker.objects.exclude(state=BreakerState.CLOSED).order_by("opened_at")
    incidents = Incident.objects.filter(resolved_at=None).order_by("opened_at")
    return Restriction(list(limits[:LOOKED_AT]), list(breakers[:LOOKED_AT]), list(incidents[:LOOKED_AT]))


def sentences(held: Restriction, now: datetime) -> Iterator[tuple[str, str]]:
    """Each with the address of the rows that it is about."""
    for limit in held.limits[:SAID]:
        narrowed = {"kind": limit.kind, "scope": limit.scope, "key": limit.key}
        narrowed |= {"org_slug": limit.org_slug} if limit.org_slug else {}
        yield f"{_named(limit)}: {sentence(limit)}", formatting.changelist_url(Limit, **narrowed)
    if len(held.limits) > SAID:
        more = _some(len(held.limits) - SAID)
        yield f"{more} more pauses or throttles.", f"{formatting.changelist_url(Limit)}?kind=pause&kind=throttle"
    yield from _of_breakers(held, now)


def _of_breakers(held: Restriction, now: datetime) -> Iterator[tuple[str, str]]:
    for breaker in held.breakers[:SAID]:
        next_one = formatting.time_until(breaker.cool_until, now)
        tried = f"the next is tried {next_one}" if breaker.state == BreakerState.OPEN else "one is being tried"
        text = f"Too many {breaker.job_type} jobs of {breaker.org_slug} failed: no more of them start, {tried}."
        yield text, formatting.changelist_url(Breaker, org_slug=breaker.org_slug, job_type=breaker.job_type)
    if len(held.breakers) > SAID:
        yield f"{_some(len(held.breakers) - SAID)} more breakers are open.", formatting.changelist_url(Breaker)
    if count := len(held.incidents):
        text = f"{_some(count)} {'incident is' if count == 1 else 'incidents are'} open: {held.incidents[0].summary}"
        yield text, formatting.changelist_url(Incident, state="open")


def _named(limit: Limit) -> str:
    """As a sentence begins; a slug keeps its small letter."""
    name = whose(limit)
    return name if limit.org_slug else name[0].upper() + name[1:]


def _some(count: int) -> str:
    return str(count) if count < LOOKED_AT - SAID else f"{LOOKED_AT - SAID} or more"
