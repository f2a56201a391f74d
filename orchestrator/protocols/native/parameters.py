"""What the OpenAPI document says of headers and parameters that several operations have."""

from typing import Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.headers import KEY_PATTERN, SESSION_PATTERN
from runtime_jobs.identifiers import ULID_PATTERN

HEADER: Final = "header"
QUERY: Final = "query"
PATH: Final = "path"


def _header(name: str, pattern: str, about: str) -> OpenApiParameter:
    return OpenApiParameter(name, {"type": "string", "pattern": f"^{pattern}$"}, HEADER, description=about)


KEY = _header("Idempotency-Key", KEY_PATTERN, "The same request again gets the first answer; another one 409.")
SESSION = _header("Worker-Session", SESSION_PATTERN, "A ULID, by which a worker names its process.")
LEASE = OpenApiParameter("lease_id", {"type": "string", "pattern": f"^rtl_{ULID_PATTERN}$"}, PATH, required=True)
AFTER = OpenApiParameter(
    "after", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}, QUERY, description="Only a higher seq."
)
FOLLOW = OpenApiParameter("follow", OpenApiTypes.STR, QUERY, enum=["0", "1"], description="1: until the end.")
LOCATION = OpenApiParameter(
    "Location", {"type": "string"}, HEADER, required=True, response=[201], description="Where the job is."
)
REPLAYED = OpenApiParameter(
    "Idempotency-Replayed", {"type": "string", "enum": ["true"]}, HEADER, response=[201], description="Not the first."
)
REPLAYED_MANY = OpenApiParameter(
    "Idempotency-Replayed", {"type": "string", "enum": ["true"]}, HEADER, response=[200], description="Not the first."
)
