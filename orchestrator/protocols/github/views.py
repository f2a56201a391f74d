"""`POST /api/v1/webhooks/github`."""

import re
from typing import Any

from django.conf import settings
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.access.addresses import address_of
from orchestrator.access.arrivals import arrival_of
from orchestrator.access.policies import policy_of
from orchestrator.access.problems import Refusal
from orchestrator.access.queries import StrictQuery
from orchestrator.protocols.github import answers, bodies, wire
from orchestrator.protocols.github.keeping import Delivery, keep_unclaimed
from orchestrator.protocols.github.models import Outcome
from orchestrator.protocols.github.signers import GithubSignature, IsSigned, Signer
from orchestrator.protocols.github.taking import Taken, take
from runtime_jobs.clock import database_time
from runtime_jobs.specs import RUNTIME

EVENT, DELIVERY = "X-GitHub-Event", "X-GitHub-Delivery"


class GithubWebhookView(StrictQuery, APIView):
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
        payload = bodies.payload_of(request, signer.raw)
        event = wire.normalise(kind, payload, hosts=settings.REPOSITORY_HOSTS)
        delivery = Delivery(
            delivery_id=delivery_id,
            event=kind,
            repository=wire.full_name_of(payload) or "",
            correlation_id=arrival_of(request).correlation_id,
            source_address=address_of(request),
        )
        return answers.answer(_taken(event, delivery, signer))


def _taken(event: wire.Event | wire.Ignored, delivery: Delivery, signer: Signer) -> list[Taken]:
    """One transaction a project. Where one fails, the delivery sent again finds the others done."""
    if not signer.projects:
        keep_unclaimed(event, delivery, database_time())
        return [Taken(Outcome.IGNORED)]
    pool, policy = settings.DEFAULT_POOL, policy_of(RUNTIME)
    return [
        take(event, delivery, project_id=project.pk, policy=policy, default_pool=pool) for project in signer.projects
    ]


def _header(request: Request, name: str, pattern: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not re.fullmatch(pattern, value):
        raise _wrong(name, f"It must match {pattern}")
    return value


def _wrong(header: str, detail: str) -> Refusal:
    return Refusal(400, "invalid", "The request is not valid.", errors={header: [detail]})
