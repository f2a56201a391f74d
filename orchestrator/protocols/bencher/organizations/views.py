"""View of `POST /v0/organizations/{organization}/claim` (contract 2.11)."""

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.json_parser import body_of
from orchestrator.protocols.bencher.base_view import BencherView
from orchestrator.protocols.bencher.organizations.openapi import CLAIM_ORGANIZATION_DOCS
from orchestrator.protocols.bencher.organizations.wire import serialize_organization
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.resource_ids import parse_resource_id, row_filter
from orchestrator.services import tenants
from orchestrator.services.tenants import NO_ORGANIZATION
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Organization


class ClaimOrganizationView(BencherView):
    """Makes the caller the first member of an organization."""

    permission_classes = ()

    @CLAIM_ORGANIZATION_DOCS
    def post(self, request: Request, organization: str) -> Response:
        """Claim an organization without an owner.

        The caller becomes a member, and the plan becomes `free`. Waiting jobs get the priority of that plan at once.
        """
        body_of(request)  # refuses a body that is no JSON object
        resource_id = parse_resource_id(organization, "organization")
        found = Organization.objects.filter(**row_filter(resource_id)).first()
        if found is None:
            raise NotFound(NO_ORGANIZATION)
        claimed = tenants.claim_organization(
            organization_id=found.pk, user=caller_of(request).user, cause=self.cause_of(request)
        )
        return Response(serialize_organization(claimed), status=201)
