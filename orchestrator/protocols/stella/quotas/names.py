"""Resolves the ids of quotas."""

from orchestrator.core.principals import ClientPrincipal
from orchestrator.protocols.stella.serializers import JOB_TYPES_OR_ALL
from orchestrator.protocols.stella.tenants import require_tenant
from runtime_jobs.errors import NotFound

MISSING = "There is no quota with this id, or you may not see it."


def resolve_quota(caller: ClientPrincipal, quota_id: str) -> tuple[str, str]:
    """Return the tenant and job type of an id.

    Raises:
        NotFound: There is no such tenant or job type, or the caller may not see the tenant.
    """
    tenant, _, job_type = quota_id.replace("\0", "").partition(":")
    if job_type not in JOB_TYPES_OR_ALL:
        raise NotFound(MISSING)
    require_tenant(caller, tenant, MISSING)
    return tenant, job_type
