"""Messages about many leases in one call. Each lease has its own result; an error of one does not affect the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from django.conf import settings
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from leases.errors import StaleLease
from orchestrator import services
from orchestrator.http.api.fields import StrictSerializer, parse
from orchestrator.http.api.headers import worker_session
from orchestrator.http.api.json_parser import body_of
from orchestrator.ingest.run_checks import refused_runs
from orchestrator.protocols.native.errors import error_result
from orchestrator.protocols.native.leases import openapi, serializers, wire
from orchestrator.protocols.native.leases.views import WorkerViewSet, complete_arguments, fail_arguments
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.services import CompleteMessage, FailMessage, HeartbeatResult, HeartbeatUpdate
from runtime_jobs.errors import LifecycleError
from runtime_jobs.identifiers import is_id

R = TypeVar("R")


class LeaseBatchViewSet(WorkerViewSet):
    """The operations on one lease, for up to 256 leases."""

    @openapi.ACKNOWLEDGE_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def acknowledge(self, request: Request) -> Response:
        """Acknowledge new leases."""
        batch = LeaseBatch.read(EmptyBody, request)
        results = services.acknowledge_many(
            dict.fromkeys(batch.messages), worker=self.worker, session=worker_session(request)
        )
        return batch.response(results, wire.serialize_status)

    @openapi.HEARTBEAT_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def heartbeat(self, request: Request) -> Response:
        """Extend leases. The results contain the cancel requests."""
        batch = LeaseBatch.read(serializers.HeartbeatInput, request)
        updates = {
            lease_id: HeartbeatUpdate(phase=message["phase"], progress=message["progress"])
            for lease_id, message in batch.messages.items()
        }
        results = services.renew_many(updates, worker=self.worker, session=worker_session(request))
        return batch.response(results, _serialize_heartbeat)

    @openapi.COMPLETE_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def complete(self, request: Request) -> Response:
        """End jobs as `uploaded` or `succeeded`. A repeat returns the same response."""
        batch = LeaseBatch.read(serializers.CompleteInput, request)
        run_ids = {lease_id: message["result"]["ingest_run_id"] for lease_id, message in batch.messages.items()}
        run_ids = {lease_id: run_id for lease_id, run_id in run_ids.items() if run_id is not None}
        if run_ids and not settings.INGEST_URL:
            batch.reject(refused_runs(run_ids, worker=self.worker))
        messages = {
            lease_id: CompleteMessage(**complete_arguments(message["result"]))
            for lease_id, message in batch.messages.items()
        }
        return batch.response(services.complete_many(messages, worker=self.worker), wire.serialize_status)

    @openapi.FAIL_BATCH_DOCS
    @action(detail=False, methods=["post"])
    def fail(self, request: Request) -> Response:
        """End jobs as `failed`. A repeat returns the same response."""
        batch = LeaseBatch.read(serializers.FailInput, request)
        messages = {
            lease_id: FailMessage(**fail_arguments(message["result"])) for lease_id, message in batch.messages.items()
        }
        return batch.response(services.fail_many(messages, worker=self.worker), wire.serialize_status)


def _serialize_heartbeat(renewed: HeartbeatResult) -> dict[str, Any]:
    return wire.serialize_heartbeat(renewed.job, renewed.lease, renewed.now)


@dataclass
class LeaseBatch:
    """The entries of one call.

    Attributes:
        request: The call.
        order: Lease ids in the order of the request.
        messages: Validated messages by lease id.
        errors: Errors of invalid entries by lease id.
    """

    request: Request
    order: list[str]
    messages: dict[str, dict[str, Any]]
    errors: dict[str, Exception]

    @classmethod
    def read(cls, serializer: type[StrictSerializer], request: Request) -> "LeaseBatch":
        """Validate each entry with the serializer of the single call.

        Raises:
            ValidationError: The list itself is invalid.
        """
        batch = cls(request, [], {}, {})
        for entry in parse(serializers.LeaseBatchInput, body_of(request))["leases"]:
            lease_id = entry["lease_id"]
            batch.order.append(lease_id)
            try:
                batch.messages[lease_id] = _parse_entry(serializer, entry)
            except (ValidationError, StaleLease) as error:
                batch.errors[lease_id] = error
        return batch

    def reject(self, errors: dict[str, LifecycleError]) -> None:
        """Record errors of entries that passed validation."""
        self.errors |= errors
        self.messages = {lease_id: message for lease_id, message in self.messages.items() if lease_id not in errors}

    def response(self, results: dict[str, R | LifecycleError], serialize: Callable[[R], dict[str, Any]]) -> Response:
        """Return one result per entry, in the order of the request."""
        return Response({"results": [self._result(lease_id, results, serialize) for lease_id in self.order]})

    def _result(
        self, lease_id: str, results: dict[str, R | LifecycleError], serialize: Callable[[R], dict[str, Any]]
    ) -> dict[str, Any]:
        result = self.errors.get(lease_id) or results[lease_id]
        if isinstance(result, Exception):
            return {"lease_id": lease_id} | error_result(result, self.request)
        return {"lease_id": lease_id, "status": 200, "body": serialize(result)}


def _parse_entry(serializer: type[StrictSerializer], entry: dict[str, Any]) -> dict[str, Any]:
    if not is_id(entry["lease_id"], "rtl"):
        raise StaleLease("unknown_lease")
    message: dict[str, Any] = parse(serializer, {name: value for name, value in entry.items() if name != "lease_id"})
    return message
