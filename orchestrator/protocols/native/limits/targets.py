"""Resolves the target that a request names, and checks that the caller may act on it."""

from typing import Any

from rest_framework import serializers

from leases.models import LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.auth.permissions import require_installation
from orchestrator.protocols.native.organizations import visible_organization
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Project
from runtime_jobs.specs import JOB_TYPES
from workers.models import Pool


def resolve_target(caller: ClientPrincipal, source: dict[str, Any]) -> LimitTarget:
    """Return the target of a validated `source`.

    Raises:
        NotFound: The target does not exist, or the caller may not see it.
        OperatorOnly: The target concerns all organizations, and the caller lacks the permission.
    """
    org_slug, key = source.get("org_slug", ""), source.get("key", "")
    match source["kind"]:
        case "pool":
            return pool_target(caller, key)
        case "project":
            return _project_target(caller, org_slug, key)
        case "job_type":
            return _job_type_target(caller, org_slug, key)
    visible_organization(caller, org_slug)
    return LimitTarget.of_organization(org_slug)


def limit_target(caller: ClientPrincipal, validated: dict[str, Any]) -> LimitTarget:
    """Return the target of a validated request for a new limit.

    Raises:
        NotFound: The organization or project does not exist, or the caller may not see it.
    """
    org_slug = validated["org_slug"]
    if validated["kind"] == LimitKind.PROJECT:
        return _project_target(caller, org_slug, validated["project_slug"])
    visible_organization(caller, org_slug)
    return LimitTarget.of_organization(org_slug, validated["job_type"])


def pool_target(caller: ClientPrincipal, slug: str) -> LimitTarget:
    """Return the target for all jobs of a pool.

    Raises:
        NotFound: The caller is not an operator, or the pool does not exist.
        OperatorOnly: The operator lacks the permission to change pools.
    """
    require_installation(caller)
    if not Pool.objects.filter(slug=slug.replace("\0", "")).exists():
        raise NotFound("There is no pool with this name.")
    return LimitTarget(LimitScope.POOL, "", slug)


def _project_target(caller: ClientPrincipal, org_slug: str, slug: str) -> LimitTarget:
    visible_organization(caller, org_slug)
    if not Project.objects.filter(organization__slug=org_slug, slug=slug).exists():
        raise NotFound(f"The organization {org_slug} has no project with this key.")
    return LimitTarget.of_project(org_slug, slug)


def _job_type_target(caller: ClientPrincipal, org_slug: str, name: str) -> LimitTarget:
    if name not in JOB_TYPES:
        raise serializers.ValidationError({"source": {"key": f"Must be one of: {', '.join(JOB_TYPES)}."}})
    if org_slug:
        visible_organization(caller, org_slug)
        return LimitTarget.of_organization(org_slug, name)
    require_installation(caller)
    return LimitTarget(LimitScope.JOB_TYPE, "", name)
