"""Ids of sources: `acme:*` an organization, `acme:scan` one of its job types, `acme/web` a project.

`*:scan` is a job type of all organizations together, which only operators see.
"""

from leases.models import LimitScope
from leases.scheduling.limits import ALL_TYPES, LimitTarget
from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.auth.permissions import require_installation
from orchestrator.protocols.stella.tenants import require_tenant
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Project
from runtime_jobs.specs import JOB_TYPES

MISSING = "There is no source with this id, or you may not see it."


def source_id(target: LimitTarget) -> str:
    """Return the id of the source that has these jobs."""
    if target.scope == LimitScope.PROJECT:
        return f"{target.org_slug}/{target.key}"
    return f"{target.org_slug or ALL_TYPES}:{target.key}"


def target_of(caller: ClientPrincipal, text: str) -> LimitTarget:
    """Return the jobs of the source with this id.

    Raises:
        NotFound: There is no such source, or the caller may not see it.
        OperatorOnly: The source concerns all organizations, and the operator lacks the permission.
    """
    tenant, slash, project = text.partition("/")
    if slash:
        require_tenant(caller, tenant, MISSING)
        if not Project.objects.filter(organization__slug=tenant, slug=project).exists():
            raise NotFound(MISSING)
        return LimitTarget.of_project(tenant, project)
    tenant, _, job_type = text.partition(":")
    if tenant == ALL_TYPES and job_type in JOB_TYPES:
        if not caller.is_operator:
            raise NotFound(MISSING)
        require_installation(caller)
        return LimitTarget(LimitScope.JOB_TYPE, "", job_type)
    if job_type not in {ALL_TYPES, *JOB_TYPES}:
        raise NotFound(MISSING)
    require_tenant(caller, tenant, MISSING)
    return LimitTarget.of_organization(tenant, job_type)
