"""What the OpenAPI document says of this door: its messages, its answers, its errors in their envelope."""

from typing import Any, Literal

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from orchestrator.http.api.headers import KEY_PATTERN
from orchestrator.http.api.openapi import ProblemSchema, operation_docs
from orchestrator.http.errors.problems import TITLES
from orchestrator.protocols.delta import answers, examples, requests
from orchestrator.protocols.delta.permissions import CanUseLease


class DeltaSchema(ProblemSchema):
    """One operation of this door."""

    def refusal(self, status: int, codes: list[str]) -> tuple[OpenApiResponse, str]:
        return OpenApiResponse(answers.DeltaError, f"{TITLES[status]}: {', '.join(codes)}."), "application/json"

    def codes(self) -> set[str]:
        """Unknown fields are ignored here."""
        return super().codes() - {"unknown_field"}

    def get_tags(self) -> list[str]:
        return ["delta"]

    def get_auth(self) -> list[Any]:
        """In pools that trust lease ids the message alone is enough."""
        found = super().get_auth()
        return [*found, {}] if any(isinstance(one, CanUseLease) for one in self.view.get_permissions()) else found

    def _map_basic_serializer(self, serializer: Any, direction: Literal["request", "response"]) -> dict[str, Any]:
        """Requests may have more than is named here."""
        mapped = super()._map_basic_serializer(serializer, direction)
        return mapped if direction == "response" else mapped | {"additionalProperties": {}}


KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
    OpenApiParameter.HEADER,
    description="The same request again gets the first answer; another one 409.",
)
REPLAYED = OpenApiParameter(
    "Idempotency-Replayed",
    {"type": "string", "enum": ["true"]},
    OpenApiParameter.HEADER,
    response=[200],
    description="Not the first.",
)

LEASE = operation_docs(
    "grant_delta_lease",
    request=requests.LeaseWanted,
    responses={200: answers.LeaseGranted, 204: OpenApiResponse(description="No work for this runner now.")},
    parameters=[KEY, REPLAYED],
    examples=[examples.WANTED, examples.GRANTED],
    codes=("idempotency_conflict",),
)


def _of_a_lease(operation_id: str, message: Any, answer: Any, *codes: str, shown: list[OpenApiExample]) -> Any:
    return operation_docs(
        operation_id,
        request=message,
        responses={200: answer},
        examples=[*shown, examples.STALE],
        codes=("stale_lease", *codes),
    )


ACK_LEASE = _of_a_lease(
    "acknowledge_delta_lease", requests.AckLease, answers.LeaseAccepted, shown=[examples.ACK, examples.ACCEPTED]
)
HEARTBEAT = _of_a_lease(
    "renew_delta_lease",
    requests.RunnerHeartbeat,
    answers.HeartbeatAck,
    shown=[examples.HEARTBEAT, examples.HEARTBEAT_ACK],
)
COMPLETE = _of_a_lease(
    "complete_delta_lease",
    requests.RunnerComplete,
    answers.CompleteAck,
    shown=[examples.COMPLETE, examples.COMPLETE_ACK],
)
CANCEL_ACK = _of_a_lease(
    "acknowledge_delta_cancel",
    requests.CancelAck,
    answers.CancelFinalized,
    "cancel_not_requested",
    shown=[examples.CANCEL_ACK, examples.CANCEL_FINALIZED],
)
