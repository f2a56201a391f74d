"""Finds the organization that a request names by `org_slug`."""

from typing import Final

from orchestrator.core.principals import ClientPrincipal
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Organization

NO_ORGANIZATION: Final = "There is no organization with this org_slug, or you may not see it."


def visible_organization(caller: ClientPrincipal, org_slug: str) -> Organization:
    """Return an organization that the caller may see.

    Raises:
        NotFound: There is none.
    """
    found = Organization.objects.filter(slug=org_slug).first() if caller.sees(org_slug) else None
    if found is None:
        raise NotFound(NO_ORGANIZATION)
    return found
