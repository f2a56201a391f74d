"""`POST /api/v1/webhooks/github`."""

import re
from typing import Any

from django.conf import settings
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.job_policies import policy_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.client_ip import client_address
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.github import answers, wire
from orchestrator.protocols.github import payload as github_payload
from orchestrator.protocols.github.authentication import GithubSignature, IsSigned, VerifiedDelivery
from orchestrator.protocols.github.deliveries import Delivery, save_unclaimed
from orchestrator.protocols.github.handler import DeliveryResult, handle_delivery
from orchestrator.protocols.github.models import Outcome
from runtime_jobs.db_time import database_now
from runtime_jobs.specs import RUNTIME

EVENT, DELIVERY = "X-GitHub-Event", "X-GitHub-Delivery"


class GithubWebhookView(StrictQueryMixin, APIView):
    """The order of the checks is that of the runner's contract, section 11: method, secret, size, signature, event."""

    authentication_classes = (GithubSignature,)
    permission_classes = (IsSigned,)
    http_method_names = ("post",)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method != "POST":  # the framework would ask for the signature first
            raise MethodNotAllowed(str(request.method))
        super().initial(request, *args, **kwargs)

    @answers.RECEIVE
    def post(self, request: Request) -> Response:
        """Take what GitHub says of a pull request (opened, synchronize, reopened) or a push to a branch, and run the
        project's configured command on it, once. Every other event is taken and ignored."""
        signer: Any = request.user
        kind = _header(request, EVENT, "[a-z0-9_]{1,64}")
        if kind is None:
            raise _wrong(EVENT, "It is missing.")
        delivery_id = _header(request, DELIVERY, "[A-Za-z0-9-]{1,64}")
        payload = github_payload.payload_of(request, signer.raw)
        event = wire.normalise(kind, payload, hosts=settings.REPOSITORY_HOSTS)
        delivery = Delivery(
            delivery_id=delivery_id,
            event=kind,
            repository=wire.full_name_of(payload) or "",
            correlation_id=context_of(request).correlation_id,
            source_address=client_address(request),
        )
        return answers.answer(_taken(event, delivery, signer))


def _taken(event: wire.Event | wire.Ignored, delivery: Delivery, signer: VerifiedDelivery) -> list[DeliveryResult]:
    """One transaction a project. Where one fails, the delivery sent again finds the others done."""
    if not signer.projects:
        save_unclaimed(event, delivery, database_now())
        return [DeliveryResult(Outcome.IGNORED)]
    pool, policy = settings.DEFAULT_POOL, policy_of(RUNTIME)
    return [
        handle_delivery(event, delivery, project_id=project.pk, policy=policy, default_pool=pool)
        for project in signer.projects
    ]


def _header(request: Request, name: str, pattern: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not re.fullmatch(pattern, value):
        raise _wrong(name, f"It must match {pattern}")
    return value


def _wrong(header: str, detail: str) -> ApiError:
    return ApiError(400, "invalid", "The request is not valid.", errors={header: [detail]})
