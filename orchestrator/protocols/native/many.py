"""What a worker says of many leases in one call: an answer for each, and one that is refused spoils no other."""

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
from orchestrator.protocols.native import lease_operations as operations
from orchestrator.protocols.native import requests, wire
from orchestrator.protocols.native.answering import refusal
from orchestrator.protocols.native.leases import ForWorkers, failure_of, success_of
from orchestrator.services import CompleteMessage, FailMessage, HeartbeatResult, HeartbeatUpdate
from runtime_jobs.errors import LifecycleError
from runtime_jobs.identifiers import is_id

R = TypeVar("R")
Answers = dict[str, R | LifecycleError]


class ManyLeasesViewSet(ForWorkers):
    """The same verbs as for one lease, without its id in the address."""

    @operations.ACKNOWLEDGE_MANY
    @action(detail=False, methods=["post"])
    def acknowledge(self, request: Request) -> Response:
        """Take up leases that were granted."""
        sent = _sent(requests.Nothing, request)
        words = dict.fromkeys(sent.words)
        answers = services.acknowledge_many(words, worker=self.worker, session=worker_session(request))
        return sent.answered(answers, wire.ended)

    @operations.HEARTBEAT_MANY
    @action(detail=False, methods=["post"])
    def heartbeat(self, request: Request) -> Response:
        """Renew leases, and hear which of the jobs shall be canceled."""
        sent = _sent(requests.Heartbeat, request)
        words = {
            name: HeartbeatUpdate(phase=told["phase"], progress=told["progress"]) for name, told in sent.words.items()
        }
        answers = services.renew_many(words, worker=self.worker, session=worker_session(request))
        return sent.answered(answers, _renewed)

    @operations.COMPLETE_MANY
    @action(detail=False, methods=["post"])
    def complete(self, request: Request) -> Response:
        """End jobs as uploaded or succeeded. The same messages again are answered the same."""
        sent = _sent(requests.Complete, request)
        runs = {name: told["result"]["ingest_run_id"] for name, told in sent.words.items()}
        runs = {name: run for name, run in runs.items() if run is not None}
        if runs and not settings.INGEST_URL:
            sent.refuse(refused_runs(runs, worker=self.worker))
        words = {name: CompleteMessage(**success_of(told["result"])) for name, told in sent.words.items()}
        return sent.answered(services.complete_many(words, worker=self.worker), wire.ended)

    @operations.FAIL_MANY
    @action(detail=False, methods=["post"])
    def fail(self, request: Request) -> Response:
        """End jobs as failed. The same messages again are answered the same."""
        sent = _sent(requests.Fail, request)
        words = {name: FailMessage(**failure_of(told["result"])) for name, told in sent.words.items()}
        return sent.answered(services.fail_many(words, worker=self.worker), wire.ended)


def _renewed(renewed: HeartbeatResult) -> dict[str, Any]:
    return wire.renewed(renewed.job, renewed.lease, renewed.at)


@dataclass
class Sent:
    """The entries of a call by their lease: what each says, or why it is refused before anybody looks at the lease."""

    request: Request
    order: list[str]
    words: dict[str, dict[str, Any]]
    refusals: dict[str, Exception]

    def refuse(self, refusals: dict[str, LifecycleError]) -> None:
        self.refusals |= refusals
        self.words = {name: told for name, told in self.words.items() if name not in refusals}

    def answered(self, answers: Answers[R], shown: Callable[[R], dict[str, Any]]) -> Response:
        """A result for each entry, in the order in which they came."""
        return Response({"results": [self._result(name, answers, shown) for name in self.order]})

    def _result(self, name: str, answers: Answers[R], shown: Callable[[R], dict[str, Any]]) -> dict[str, Any]:
        answer = self.refusals.get(name) or answers[name]
        if isinstance(answer, Exception):
            return {"lease_id": name} | refusal(answer, self.request)
        return {"lease_id": name, "status": 200, "body": shown(answer)}


def _sent(shape: type[StrictSerializer], request: Request) -> Sent:
    """Read the entries. Raises ValidationError for what is wrong with the list itself."""
    sent = Sent(request, [], {}, {})
    for entry in parse(requests.ManyLeases, body_of(request))["leases"]:
        name = entry["lease_id"]
        sent.order.append(name)
        try:
            sent.words[name] = _read(shape, entry)
        except (ValidationError, StaleLease) as error:
            sent.refusals[name] = error
    return sent


def _read(shape: type[StrictSerializer], entry: dict[str, Any]) -> dict[str, Any]:
    if not is_id(entry["lease_id"], "rtl"):
        raise StaleLease("unknown_lease")
    told: dict[str, Any] = parse(shape, {name: value for name, value in entry.items() if name != "lease_id"})
    return told
