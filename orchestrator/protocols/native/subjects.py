"""Whose jobs a caller speaks of, and whether it may."""

from typing import Any

from rest_framework import serializers

from leases.limits import Subject
from leases.models import LimitScope
from orchestrator.access.permissions import require_installation
from orchestrator.access.principals import Client
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Organization, Project
from runtime_jobs.specs import TYPES
from workers.models import Pool


def subject_of(caller: Client, source: dict[str, Any]) -> Subject:
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
    return Subject.of_organization(org_slug)


def require_organization(caller: Client, org_slug: str) -> None:
    if not caller.sees(org_slug) or not Organization.objects.filter(slug=org_slug).exists():
        raise NotFound("There is no such organization.")


def pool_of(caller: Client, slug: str) -> Subject:
    require_installation(caller)
    if not Pool.objects.filter(slug=slug.replace("\0", "")).exists():
        raise NotFound("There is no such pool.")
    return Subject(LimitScope.POOL, "", slug)


def _project(caller: Client, org_slug: str, slug: str) -> Subject:
    require_organization(caller, org_slug)
    if not Project.objects.filter(organization__slug=org_slug, slug=slug).exists():
        raise NotFound("There is no such project.")
    return Subject(LimitScope.PROJECT, org_slug, slug)


def _job_type(caller: Client, org_slug: str, name: str) -> Subject:
    if name not in TYPES:
        raise serializers.ValidationError({"source": {"key": f"One of: {', '.join(TYPES)}."}})
    if org_slug:
        require_organization(caller, org_slug)
        return Subject.of_organization(org_slug, name)
    require_installation(caller)
    return Subject(LimitScope.JOB_TYPE, "", name)
