"""Copies the limits and weights of plans to the tables that claims read."""

from django.db.models import F

from leases.models import LaneShare, LimitKind
from leases.scheduling.limits import LimitTarget, remove_limit, set_limit
from runtime_jobs.models import Organization, Plan

# Jobs of this priority or a higher one are counted by a plan's limit, not stopped (document 002).
BINDS_BELOW = 200


def sync_plan_limits(org_slug: str) -> None:
    """Bring the limit and the shares of an organization in line with its plan, inside the caller's transaction."""
    plan = Plan.objects.filter(organizations__slug=org_slug).first()
    subject = LimitTarget.of_organization(org_slug)
    limit = subject.limit(LimitKind.PLAN)
    max_active = plan.max_active if plan else None
    if max_active is None and limit is not None:
        remove_limit(LimitKind.PLAN, subject)
    elif max_active is not None and (limit is None or limit.max_active != max_active):
        set_limit(LimitKind.PLAN, subject, max_active=max_active, binds_below=BINDS_BELOW)
    if plan:
        Organization.objects.filter(slug=org_slug, followed_priority=None).update(followed_priority=plan.priority)
        LaneShare.objects.filter(org_slug=org_slug).exclude(weight=plan.weight).update(weight=plan.weight)


def organizations_with_stale_plan(*, limit: int = 200) -> list[str]:
    """Return up to `limit` organizations whose limit or shares differ from their plan."""
    organizations = Organization.objects.raw(
        """SELECT o.id, o.slug FROM runtime_jobs_organization o JOIN runtime_jobs_plan p ON p.id = o.plan_id
             LEFT JOIN lane_limits m ON m.scope = 'organization' AND m.org_slug = o.slug AND m.key = '*'
                                    AND m.kind = 'plan'
            WHERE (m.max_active IS DISTINCT FROM p.max_active
                   AND EXISTS (SELECT FROM lane_queues q WHERE q.org_slug = o.slug))
               OR EXISTS (SELECT FROM lane_shares s WHERE s.org_slug = o.slug AND s.weight <> p.weight)
            ORDER BY o.id LIMIT %s""",
        [limit],
    )
    return [organization.slug for organization in organizations]


def organizations_with_changed_priority(*, limit: int = 50) -> list[Organization]:
    """Return up to `limit` organizations whose plan has another priority than their waiting jobs were given."""
    changed = Organization.objects.exclude(followed_priority=None).exclude(followed_priority=F("plan__priority"))
    return list(changed.select_related("plan").order_by("pk")[:limit])
