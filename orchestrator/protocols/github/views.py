"""View of `POST /api/v1/webhooks/github`."""

import re
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.client_ip import client_address
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.github import wire
from orchestrator.protocols.github.authentication import GithubSignature, IsSigned, VerifiedDelivery
from orchestrator.protocols.github.deliveries import DeliveryFacts, save_unclaimed
from orchestrator.protocols.github.handler import DeliveryResult, handle_delivery
from orchestrator.protocols.github.models import Outcome
from orchestrator.protocols.github.openapi import WEBHOOK_DOCS
from orchestrator.protocols.github.payload import parse_payload
from orchestrator.protocols.github.workflows import accept_delivery, parse_workflow_delivery, workflow_repository
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import QuotaExceeded
from runtime_jobs.models import Job
from runtime_jobs.specs import RUNTIME, configured_policy

EVENT_HEADER, DELIVERY_HEADER = "X-GitHub-Event", "X-GitHub-Delivery"
# Outcomes in the order in which they determine the response, if several projects run the repository.
OUTCOME_RANK = (Outcome.CREATED, Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.REFUSED, Outcome.IGNORED)


class GithubWebhookView(StrictQueryMixin, APIView):
    """Checks in the order of the runner's contract, section 11: method, secret, size, signature, event."""

    authentication_classes = (GithubSignature,)
    permission_classes = (IsSigned,)
    http_method_names = ("post",)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method != "POST":  # the framework would check the signature first
            raise MethodNotAllowed(str(request.method))
        super().initial(request, *args, **kwargs)

    @WEBHOOK_DOCS
    def post(self, request: Request) -> Response:
        """Receive an event of GitHub, and run the configured command of the project once for its commit.

        Pull requests (opened, synchronize, reopened) and pushes to branches start a run. Any other event is accepted
        and ignored. If the project has no command, but the repository is one of its repositories with workflow files,
        the event is stored, and these files decide which runs it starts.
        """
        verified: Any = request.user
        kind = _header(request, EVENT_HEADER, "[a-z0-9_]{1,64}")
        if kind is None:
            raise _invalid_header(EVENT_HEADER, "This header is required.")
        delivery_id = _header(request, DELIVERY_HEADER, "[A-Za-z0-9-]{1,64}")
        payload = parse_payload(request, verified.raw)
        delivery = DeliveryFacts(
            delivery_id=delivery_id,
            event=kind,
            repository=wire.full_name_of(payload) or "",
            correlation_id=context_of(request).correlation_id,
            source_address=client_address(request),
        )
        return _response(_handle(kind, payload, delivery, verified))


def _handle(
    kind: str, payload: dict[str, Any], delivery: DeliveryFacts, verified: VerifiedDelivery
) -> list[DeliveryResult]:
    """Handle the delivery in one transaction per project. If one fails, a redelivery does not repeat the others."""
    found = [(project, workflow_repository(project, delivery.repository)) for project in verified.projects]
    with_workflows = [(project, repository) for project, repository in found if repository is not None]
    results = []
    if with_workflows:
        parsed = parse_workflow_delivery(kind, payload, delivery)
        for project, repository in with_workflows:
            results.append(DeliveryResult(accept_delivery(project, repository, parsed, delivery)))
        if len(with_workflows) == len(found):
            return results
    event = wire.parse_event(kind, payload, hosts=settings.REPOSITORY_HOSTS)
    if not verified.projects:
        save_unclaimed(event, delivery, database_now())
        return [DeliveryResult(Outcome.IGNORED)]
    pool, policy = settings.DEFAULT_POOL, configured_policy(RUNTIME)
    results += [
        handle_delivery(event, delivery, project_id=project.pk, policy=policy, default_pool=pool)
        for project, repository in found
        if repository is None
    ]
    return results


def _response(results: Sequence[DeliveryResult]) -> Response:
    """Return the response for the highest outcome. The admin has the outcome of each project.

    A refusal that ends without any change (a submit quota) is 429: GitHub lists the delivery as failed, and a
    redelivery is handled again. Any other refusal is 202, because a redelivery would not help.

    Raises:
        QuotaExceeded: A submit quota refused the run.
    """
    best = min(results, key=lambda result: OUTCOME_RANK.index(result.outcome))
    if best.first is not None:
        job = Job.objects.filter(batch__batch_ulid=best.first.batch_ulid).order_by("-id").first()
        body = {"run_id": best.first.batch_ulid, "state": wire.run_state(job) if job else "CANCELED"}
        return Response(body, status=201 if best.outcome == Outcome.CREATED else 202)
    exceeded = next((result.refusal for result in results if isinstance(result.refusal, QuotaExceeded)), None)
    if exceeded is not None:
        raise exceeded
    return Response({"refused": best.refusal.code} if best.refusal else None, status=202)


def _header(request: Request, name: str, pattern: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not re.fullmatch(pattern, value):
        raise _invalid_header(name, f"Must match {pattern}")
    return value


def _invalid_header(name: str, detail: str) -> ApiError:
    return ApiError(400, "invalid", f"The header {name} is not valid.", errors={name: [detail]})
