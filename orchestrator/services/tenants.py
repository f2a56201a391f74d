"""Creates organizations and projects for runs, and gives an organization without an owner its first member."""

import logging
from datetime import datetime
from typing import Any

from django.db.models import Manager

from leases.scheduling.plan_limits import sync_plan_limits
from leases.scheduling.submit_quotas import create_quota
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.priority import raise_queued_priority
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import ApiToken, MemberRole, Membership, Organization, Project
from runtime_jobs.models.tenants import MAX_SLUG_LENGTH, Visibility
from runtime_jobs.plans import FREE, UNCLAIMED, plan_of_tier
from runtime_jobs.resource_names import slugify, with_random_suffix

log = logging.getLogger(__name__)

NO_ORGANIZATION = "There is no organization with this UUID or slug, or you may not see it."
_MAX_WITH_SUFFIX = MAX_SLUG_LENGTH - 9  # a hyphen and eight characters


def is_claimed(organization: Organization) -> bool:
    """Report whether an organization has an owner. Without one everyone may claim it and submit runs to it.

    An owner is a member, or whoever has arranged with an operator what an anonymous run never creates: another plan
    than `unclaimed`, an API token or project key (also one that has ended), or a private project.
    """
    return (
        organization.plan.name != UNCLAIMED
        or Membership.objects.filter(organization=organization).exists()
        or ApiToken.objects.filter(organization=organization).exists()
        or organization.projects.filter(visibility=Visibility.PRIVATE).exists()
    )


def claimed_at(organization: Organization) -> datetime | None:
    """Return since when an organization has an owner, or None. Those of an operator have one from the beginning."""
    if organization.claimed_at is not None:
        return organization.claimed_at
    return organization.created_at if is_claimed(organization) else None


def lock_organization(organization_id: int) -> Organization:
    """Lock an organization and return it.

    A run of an organization without an owner holds this lock until its commit, and so does the claim of the
    organization. So the claim raises the priority of every job that was submitted before it. The plan is read later:
    a join with it finds no row if the plan has changed while this statement waited for the lock.
    """
    return Organization.objects.select_for_update(no_key=True).get(pk=organization_id)


@operation
def claim_organization(
    uow: UnitOfWork,
    *,
    organization_id: int,
    user: Any,
    cause: Cause,
) -> Organization:
    """Make a person the first member of an organization without an owner, and give it the plan `free`.

    Waiting jobs with the priority of the former plan get that of the new one after the commit. If this process ends
    before, the scheduler does it. A repetition by a member changes nothing.

    Args:
        organization_id: The key of the organization.
        user: The person.

    Returns:
        The organization.

    Raises:
        NotFound: The organization has an owner, and the person may not see it.
        ResourceConflict: The organization has an owner, and a public project.
    """
    organization = lock_organization(organization_id)
    if not is_claimed(organization):
        claim_locked(uow, organization, user=user, cause=cause)
    elif not Membership.objects.filter(organization=organization, user=user).exists():
        if organization.projects.filter(visibility=Visibility.PUBLIC).exists():
            raise ResourceConflict(f"The organization {organization.slug} has already been claimed.")
        raise NotFound(NO_ORGANIZATION)
    return organization


def claim_locked(
    uow: UnitOfWork,
    organization: Organization,
    *,
    user: Any,
    cause: Cause,
) -> None:
    """Make a person a member of a locked organization without an owner; see `claim_organization`."""
    before, organization.plan = organization.plan.name, plan_of_tier(FREE)
    organization.claimed_at = cause.now or database_now()
    organization.save(update_fields=["plan", "claimed_at"])
    Membership.objects.create(user=user, organization=organization, role=MemberRole.QUOTA_MANAGER)
    record_operator_event(
        "organization.claimed",
        target=f"organization:{organization.slug}"[:200],
        cause=cause.at(organization.claimed_at),
        before={"plan": before},
        after={"plan": organization.plan.name, "member": user.get_username()},
        org_slug=organization.slug,
    )
    uow.after_commit(_follow_plans, organization.pk)


def _follow_plans(organization_ids: list[int]) -> None:
    """Apply the limits of the new plans, and then raise the priority of waiting jobs.

    The limits come first: a job of the new priority may not start while the limit of its plan is missing.
    """
    try:
        for organization in Organization.objects.select_related("plan").filter(pk__in=organization_ids):
            sync_plan(org_slug=organization.slug)
            organization.refresh_from_db(fields=["followed_priority"])
            while not raise_queued_priority(organization):
                pass
    except Exception:  # the organization is claimed; the scheduler applies the plan with its next round
        log.exception("the plans of the organizations %s are not applied yet", organization_ids)


@operation
def sync_plan(_: UnitOfWork, *, org_slug: str, now: datetime | None = None) -> str:  # noqa: ARG001 the scheduler passes it
    """Set the limits of an organization to those of its plan, and return its slug."""
    sync_plan_limits(org_slug)
    return org_slug


def create_unclaimed_project(slug: str, name: str) -> Project:
    """Create a public project in an organization of its own, which has no owner. Call this inside an operation.

    Args:
        slug: The requested slug.
        name: The name of the organization.
    """
    organization = _create_organization(slug, name, UNCLAIMED)
    return _create_project(organization, slug, Visibility.PUBLIC)


def create_own_project(slug: str, *, user: Any) -> Project:
    """Create a private project in an organization of a person. Call this inside an operation.

    A person without an organization gets one with the plan `free`. Of several the one with the person's name is used,
    else the oldest. Those in which the person is a viewer do not count.

    Args:
        slug: The requested slug.
        user: The person.
    """
    own_slug = slugify(user.get_username())[:MAX_SLUG_LENGTH]
    memberships = Membership.objects.select_related("organization__plan").filter(user=user)
    memberships = memberships.exclude(role=MemberRole.VIEWER).order_by("pk")
    organizations = [membership.organization for membership in memberships]
    organization = next((one for one in organizations if one.slug == own_slug), next(iter(organizations), None))
    if organization is None:
        organization = _create_organization(own_slug, user.get_username(), FREE)
        Membership.objects.create(user=user, organization=organization, role=MemberRole.QUOTA_MANAGER)
    return _create_project(organization, slug, Visibility.PRIVATE)


def _create_organization(slug: str, name: str, tier: str) -> Organization:
    slug = _free_slug(slug, Organization.objects)
    organization = Organization.objects.create(slug=slug, name=name[:200], plan=plan_of_tier(tier))
    create_quota(slug)
    return organization


def _create_project(organization: Organization, slug: str, visibility: Visibility) -> Project:
    """Create a project that is not enabled: it may submit only job types that need no permission of an operator."""
    # With another public slug, the organization can have a project of this name.
    slug = _free_slug(slug, organization.projects)
    return Project.objects.create(organization=organization, slug=slug, visibility=visibility)


def _free_slug(slug: str, rows: Manager[Any]) -> str:
    """Return the slug in the length of a column, with a random suffix if one of the rows has it."""
    short = slug[:MAX_SLUG_LENGTH].rstrip("-")
    return with_random_suffix(short[:_MAX_WITH_SUFFIX]) if rows.filter(slug=short).exists() else short
