"""Resolves the tenants that requests name, and checks that the caller may see them."""

from orchestrator.core.principals import ClientPrincipal
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Organization


def require_tenant(caller: ClientPrincipal, tenant: str, message: str) -> None:
    """Raise NotFound with this message unless the tenant exists and the caller may see it."""
    if not caller.sees(tenant) or not Organization.objects.filter(slug=tenant).exists():
        raise NotFound(message)


def tenants_of(caller: ClientPrincipal, requested: str | None) -> tuple[str, ...] | None:
    """Return the tenants of a list: the requested one, else all that the caller may see. None: every tenant.

    Raises:
        NotFound: The requested tenant does not exist, or the caller may not see it.
    """
    if requested is None:
        return caller.organizations
    require_tenant(caller, requested, "There is no tenant with this name, or you may not see it.")
    return (requested,)
