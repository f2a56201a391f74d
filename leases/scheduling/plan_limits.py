"""What an organization's plan says of its limits and its weight, written down where claims look."""

from django.db.models import F

from leases.models import LaneShare, LimitKind
from leases.scheduling.limits import LimitTarget, remove_limit, set_limit
from runtime_jobs.models import Organization, Plan

# Jobs of that priority and more are counted by a plan's limit, not held (document 002).
BINDS_BELOW = 200


def sync_plan_limits(org_slug: str) -> None:
    """Bring the organization's own limit and its shares in line with its plan, inside the caller's transaction."""
    plan = Plan.objects.filter(organizations__slug=org_slug).first()
    subject = LimitTarget.of_organization(org_slug)
    limit = subject.limit(LimitKind.PLAN)
    wanted = plan.max_active if plan else None
    if wanted is None and limit is not None:
        remove_limit(LimitKind.PLAN, subject)
    elif wanted is not None and (limit is None or limit.max_active != wanted):
        set_limit(LimitKind.PLAN, subject, max_active=wanted, binds_below=BINDS_BELOW)
    if plan:
        Organization.objects.filter(slug=org_slug, followed_priority=None).update(followed_priority=plan.priority)
        LaneShare.objects.filter(org_slug=org_slug).exclude(weight=plan.weight).update(weight=plan.weight)


def organizations_with_stale_plan(*, most: int = 200) -> list[str]:
    """Organizations whose plan, or what it says, has changed since."""
    organizations = Organization.objects.raw(
        """SELECT o.id, o.slug FROM runtime_jobs_organization o JOIN runtime_jobs_plan p ON p.id = o.plan_id
             LEFT JOIN lane_limits m ON m.scope = 'organization' AND m.org_slug = o.slug AND m.key = '*'
                                    AND m.kind = 'plan'
            WHERE (m.max_active IS DISTINCT FROM p.max_active
                   AND EXISTS (SELECT FROM lane_queues q WHERE q.org_slug = o.slug))
               OR EXISTS (SELECT FROM lane_shares s WHERE s.org_slug = o.slug AND s.weight <> p.weight)
            ORDER BY o.id LIMIT %s""",
        [most],
    )
    return [organization.slug for organization in organizations]


def organizations_with_changed_priority(*, most: int = 50) -> list[Organization]:
    """Organizations whose plan gives more priority, or less, than it did when their waiting jobs came."""
    changed = Organization.objects.exclude(followed_priority=None).exclude(followed_priority=F("plan__priority"))
    return list(changed.select_related("plan").order_by("pk")[:most])
