"""OpenAPI of the claim by long poll. OpenAPI has no form for the two sockets: see `docs/protocols/bencher.md`."""

from typing import Any, Final, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import extend_schema

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.channel.serializers import ClaimedJobDocument, RunnerClaimInput
from orchestrator.protocols.bencher.openapi import BencherSchema, resource_id

RUNNER_ID: Final = resource_id("runner")

NO_DOCS = extend_schema(exclude=True)
CLAIM_RUNNER_JOB_DOCS = operation_docs(
    "claim_runner_job",
    request=RunnerClaimInput,
    responses=ClaimedJobDocument,
    parameters=[RUNNER_ID],
    description="Claims the next job of the runner. The request waits until there is a job; without one until "
    "`poll_timeout` the response is `null`. The runner then opens the WebSocket `/v0/runners/{runner}/jobs/{job}`.",
)


class RunnerClaimSchema(BencherSchema):
    """Schema of the claim, whose response may be `null`."""

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        content = bodies["200"]["content"]["application/json"]
        content["schema"] = {"oneOf": [content["schema"], {"type": "null"}]}
        return bodies


class RunnerKeyScheme(OpenApiAuthenticationExtension):
    """Keys of runners."""

    target_class = "orchestrator.protocols.bencher.channel.views.RunnerKeyAuthentication"
    name = "bencherRunner"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        about = "Key of the runner in the path (`bencher_runner_…`)."
        return {"type": "http", "scheme": "bearer", "description": about}
