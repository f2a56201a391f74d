"""OpenAPI of the operations on organizations."""

from drf_spectacular.utils import OpenApiExample

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.openapi import resource_id
from orchestrator.protocols.bencher.organizations.serializers import ClaimOrganizationInput, OrganizationDocument

CLAIM_ORGANIZATION_DOCS = operation_docs(
    "claim_organization",
    request=ClaimOrganizationInput,
    responses={201: OrganizationDocument},
    parameters=[resource_id("organization")],
    examples=[
        OpenApiExample(
            "claimed organization",
            {
                "uuid": "019a2b1c-0000-7000-8000-000000000004",
                "name": "adapter",
                "slug": "adapter",
                "created": "2026-01-01T00:00:00Z",
                "modified": "2026-01-01T00:00:00Z",
                "claimed": "2026-01-02T00:00:00Z",
            },
            response_only=True,
            status_codes=["201"],
        )
    ],
    codes=("not_found", "conflict"),
)
