"""OpenAPI of the heartbeat."""

from typing import Final

from drf_spectacular.utils import OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.shithub.heartbeat.serializers import ActionsHeartbeatInput, ClaimDocument

HEARTBEAT_DOCS: Final = operation_docs(
    "heartbeat_of_runner",
    request=ActionsHeartbeatInput,
    responses={200: ClaimDocument, 204: OpenApiResponse(description="No job.")},
    codes=(),
)
