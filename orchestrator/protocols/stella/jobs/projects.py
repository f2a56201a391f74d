"""Resolves the tenant and the project of a submit. Document 004 has no project, and a request may name none."""

from orchestrator.core.principals import ClientPrincipal
from runtime_jobs.errors import Invalid, NotFound, ProjectNotEnabled
from runtime_jobs.models import Organization

NO_TENANT = "There is no tenant with this name, or you may not see it."


def organization_of(caller: ClientPrincipal, tenant: str | None) -> Organization:
    """Return the organization in which a job is submitted: the named one, else that of the token.

    Raises:
        NotFound: There is no such organization, or the caller may not see it.
        Invalid: The caller sees several organizations, and the request names none.
    """
    if tenant is None:
        if caller.organizations is None or len(caller.organizations) != 1:
            raise Invalid({"tenant": ["This field is required: you may see several tenants, or none."]})
        tenant = caller.organizations[0]
    rows = Organization.objects.select_related("plan", "default_project")
    organization = rows.filter(slug=tenant).first() if caller.sees(tenant) else None
    if organization is None:
        raise NotFound(NO_TENANT)
    return organization


def project_of(organization: Organization, project: str | None) -> str:
    """Return the slug of the project: the named one, else the default one, else the only enabled one.

    The admission of the job checks whether the project exists and is enabled.

    Raises:
        ProjectNotEnabled: None is named, there is no default, and not exactly one project is enabled.
    """
    if project is not None:
        return project
    if organization.default_project is not None:
        return organization.default_project.slug
    enabled = list(organization.projects.filter(enabled=True).values_list("slug", flat=True)[:2])
    if len(enabled) != 1:
        raise ProjectNotEnabled(
            f"The tenant {organization.slug} has no default project and not exactly one enabled project. "
            "Name one in `project`."
        )
    return enabled[0]
