"""OpenAPI parts that several resources of this API share."""

from typing import Final

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import ProblemSchema
from orchestrator.protocols.stella.serializers import JOB_TYPES_OR_ALL

HEADER: Final = "header"
QUERY: Final = "query"
PATH: Final = "path"
SLUG_PATTERN = "[a-z0-9][a-z0-9-]{0,62}"

TENANT = OpenApiParameter(
    "tenant",
    {"type": "string", "pattern": f"^{SLUG_PATTERN}$"},
    QUERY,
    description="Only this tenant. One that the caller may not see is 404, as one that does not exist.",
)
JOB_TYPE_OR_ALL = OpenApiParameter(
    "jobType", {"type": "string", "enum": JOB_TYPES_OR_ALL}, QUERY, description="Only this job type; `*`: all together."
)


class StellaSchema(ProblemSchema):
    """Schema of one operation of this API."""

    def get_tags(self) -> list[str]:
        return ["stella"]
