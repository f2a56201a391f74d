"""Whose jobs a caller speaks of, and whether it may."""

from typing import Any

from rest_framework import serializers

from leases.models import LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.http.auth.permissions import require_installation
from orchestrator.http.auth.principals import ClientPrincipal
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Organization, Project
from runtime_jobs.specs import JOB_TYPES
from workers.models import Pool


def subject_of(caller: ClientPrincipal, source: dict[str, Any]) -> LimitTarget:
    """What `source` names. Raises NotFound for what is not there or not the caller's, OperatorOnly."""
    org_slug, key = source.get("org_slug", ""), source.get("key", "")
    match source["kind"]:
        case "pool":
            return pool_of(caller, key)
        case "project":
            return _project(caller, org_slug, key)
        case "job_type":
            return _job_type(caller, org_slug, key)
    require_organization(caller, org_slug)
    return LimitTarget.of_organization(org_slug)


def require_organization(caller: ClientPrincipal, org_slug: str) -> None:
    if not caller.sees(org_slug) or not Organization.objects.filter(slug=org_slug).exists():
        raise NotFound("There is no such organization.")


def pool_of(caller: ClientPrincipal, slug: str) -> LimitTarget:
    require_installation(caller)
    if not Pool.objects.filter(slug=slug.replace("\0", "")).exists():
        raise NotFound("There is no such pool.")
    return LimitTarget(LimitScope.POOL, "", slug)


def _project(caller: ClientPrincipal, org_slug: str, slug: str) -> LimitTarget:
    require_organization(caller, org_slug)
    if not Project.objects.filter(organization__slug=org_slug, slug=slug).exists():
        raise NotFound("There is no such project.")
    return LimitTarget(LimitScope.PROJECT, org_slug, slug)


def _job_type(caller: ClientPrincipal, org_slug: str, name: str) -> LimitTarget:
    if name not in JOB_TYPES:
        raise serializers.ValidationError({"source": {"key": f"One of: {', '.join(JOB_TYPES)}."}})
    if org_slug:
        require_organization(caller, org_slug)
        return LimitTarget.of_organization(org_slug, name)
    require_installation(caller)
    return LimitTarget(LimitScope.JOB_TYPE, "", name)
