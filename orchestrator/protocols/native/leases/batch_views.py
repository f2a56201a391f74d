"""Messages about many leases in one call. Each lease has its own result; an error of one does not affect the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from leases.errors import StaleLease
from orchestrator.http.api.calls import ApiAnswer, ApiCall, respond
from orchestrator.http.api.fields import StrictSerializer, parse
from orchestrator.http.api.headers import worker_session
from orchestrator.http.auth.callers import worker_of
from orchestrator.protocols.native.errors import error_result
from orchestrator.protocols.native.leases import openapi, serializers, wire
from orchestrator.protocols.native.leases.calls import complete_arguments, complete_many, fail_arguments
from orchestrator.protocols.native.leases.views import WorkerViewSet
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.services import batch_calls
from orchestrator.services.batch_calls import Ended, messages_of
from orchestrator.services.heartbeat import HeartbeatResult, HeartbeatUpdate
from orchestrator.services.job_end import CompleteMessage, FailMessage
from runtime_jobs.errors import LifecycleError
from runtime_jobs.identifiers import is_id

R = TypeVar("R")


def acknowledge_batch(call: ApiCall) -> ApiAnswer:
    """Acknowledge new leases."""
    batch = LeaseBatch.read(EmptyBody, call)
    messages = messages_of(worker_of(call), dict.fromkeys(batch.messages), session=worker_session(call))
    return batch.answer(batch_calls.acknowledge_many(messages), wire.serialize_status)


def heartbeat_batch(call: ApiCall) -> ApiAnswer:
    """Extend leases."""
    batch = LeaseBatch.read(serializers.HeartbeatInput, call)
    updates = {
        lease_id: HeartbeatUpdate(phase=message["phase"], progress=message["progress"])
        for lease_id, message in batch.messages.items()
    }
    messages = messages_of(worker_of(call), updates, session=worker_session(call))
    return batch.answer(batch_calls.renew_many(messages), _serialize_heartbeat)


def complete_batch(call: ApiCall) -> ApiAnswer:
    """End jobs as `uploaded` or `succeeded`."""
    batch = LeaseBatch.read(serializers.CompleteEntryInput, call)
    contents = {
        lease_id: CompleteMessage(**complete_arguments(message["result"]))
        for lease_id, message in batch.messages.items()
    }
    return batch.answer(complete_many(messages_of(worker_of(call), contents)), _serialize_ended)


def fail_batch(call: ApiCall) -> ApiAnswer:
    """End jobs as `failed`."""
    batch = LeaseBatch.read(serializers.FailEntryInput, call)
    contents = {
        lease_id: FailMessage(**fail_arguments(message["result"])) for lease_id, message in batch.messages.items()
    }
    return batch.answer(batch_calls.fail_many(messages_of(worker_of(call), contents)), _serialize_ended)


class LeaseBatchViewSet(WorkerViewSet):
    """The operations on one lease, for up to 256 leases."""

    @openapi.ACKNOWLEDGE_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def acknowledge(self, request: Request) -> Response:
        """Acknowledge new leases."""
        return respond(acknowledge_batch, request)

    @openapi.HEARTBEAT_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def heartbeat(self, request: Request) -> Response:
        """Extend leases. The results contain the cancel requests."""
        return respond(heartbeat_batch, request)

    @openapi.COMPLETE_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def complete(self, request: Request) -> Response:
        """End jobs as `uploaded` or `succeeded`. A repeat returns the same response."""
        return respond(complete_batch, request)

    @openapi.FAIL_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def fail(self, request: Request) -> Response:
        """End jobs as `failed`. A repeat returns the same response."""
        return respond(fail_batch, request)


def _serialize_heartbeat(renewed: HeartbeatResult) -> dict[str, Any]:
    return wire.serialize_heartbeat(renewed.job, renewed.lease, renewed.now)


def _serialize_ended(ended: Ended) -> dict[str, Any]:
    return wire.serialize_status(ended.job)


@dataclass
class LeaseBatch:
    """The entries of one call.

    Attributes:
        request_id: Of the call, for the errors of entries.
        order: Lease ids in the order of the request.
        messages: Validated messages by lease id.
        errors: Errors of invalid entries by lease id.
    """

    request_id: str
    order: list[str]
    messages: dict[str, dict[str, Any]]
    errors: dict[str, Exception]

    @classmethod
    def read(cls, serializer: type[StrictSerializer], call: ApiCall) -> "LeaseBatch":
        """Validate each entry with the serializer of the single call.

        Raises:
            ValidationError: The list itself is invalid.
        """
        batch = cls(call.context.request_id, [], {}, {})
        for entry in parse(serializers.LeaseBatchInput, call.body)["leases"]:
            lease_id = entry["lease_id"]
            batch.order.append(lease_id)
            try:
                batch.messages[lease_id] = _parse_entry(serializer, entry)
            except (ValidationError, StaleLease) as error:
                batch.errors[lease_id] = error
        return batch

    def answer(self, results: dict[str, R | LifecycleError], serialize: Callable[[R], dict[str, Any]]) -> ApiAnswer:
        """Return one result per entry, in the order of the request."""
        return ApiAnswer({"results": [self._result(lease_id, results, serialize) for lease_id in self.order]})

    def _result(
        self, lease_id: str, results: dict[str, R | LifecycleError], serialize: Callable[[R], dict[str, Any]]
    ) -> dict[str, Any]:
        result = self.errors.get(lease_id) or results[lease_id]
        if isinstance(result, Exception):
            return {"lease_id": lease_id} | error_result(result, self.request_id)
        return {"lease_id": lease_id, "status": 200, "body": serialize(result)}


def _parse_entry(serializer: type[StrictSerializer], entry: dict[str, Any]) -> dict[str, Any]:
    if not is_id(entry["lease_id"], "rtl"):
        raise StaleLease("unknown_lease")
    message: dict[str, Any] = parse(serializer, {name: value for name, value in entry.items() if name != "lease_id"})
    return message
