"""How many jobs of an organization run at once: an operator's word, kept in the trail of operators."""

from datetime import datetime

from leases.limits import ALL_TYPES, lift_organization_limit, set_organization_limit
from leases.models import Limit
from leases.models.limits import LimitKind
from orchestrator.lifecycle.by_operator import record
from orchestrator.lifecycle.transaction import verb
from runtime_jobs.events import Actor


@verb
def set_limit(
    *,
    org_slug: str,
    job_type: str = ALL_TYPES,
    max_active: int | None,
    by: Actor,
    reason: str,
    source_address: str | None = None,
    now: datetime | None = None,
) -> None:
    """Let at most `max_active` jobs of the organization and type run at once, or any number for None.

    What runs above a lowered limit runs on; nothing new starts until there is room."""
    before = _limit(org_slug, job_type)
    if max_active is None:
        lift_organization_limit(org_slug=org_slug, job_type=job_type)
    else:
        set_organization_limit(org_slug=org_slug, job_type=job_type, max_active=max_active)
    record(
        "limit.set",
        target=f"organization:{org_slug}",
        by=by,
        before={"job_type": job_type, "max_active": before},
        after={"job_type": job_type, "max_active": max_active},
        reason=reason,
        source_address=source_address,
        now=now,
    )


def _limit(org_slug: str, job_type: str) -> int | None:
    found = Limit.objects.filter(kind=LimitKind.ORGANIZATION, org_slug=org_slug, key=job_type)
    return found.values_list("max_active", flat=True).first()
