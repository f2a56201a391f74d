"""Views of the agent endpoints: the claim by long poll (contract 0.1), and the paths of the sockets without upgrade."""

from typing import Any, Never

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.principals import WorkerPrincipal
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.asgi.long_poll import NothingToClaim, poll_attempt
from orchestrator.http.asgi.sync_handler import client_disconnected
from orchestrator.http.auth.authentication import CHALLENGE
from orchestrator.http.auth.callers import worker_of
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.protocols.bencher.authentication import authenticate_runner
from orchestrator.protocols.bencher.base_view import BencherView
from orchestrator.protocols.bencher.channel import openapi
from orchestrator.protocols.bencher.channel.claims import claim_for_runner, give_back
from orchestrator.protocols.bencher.channel.serializers import RunnerClaimInput
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.request_rates import register_connect
from workers.models import Worker


class RunnerKeyAuthentication(BaseAuthentication):
    """Authenticates the runner whose UUID or slug is in the path, by its key."""

    def authenticate_header(self, _request: Request) -> str:
        return CHALLENGE

    def authenticate(self, request: Request) -> tuple[WorkerPrincipal, None]:
        runner = request.parser_context["kwargs"]["runner"]
        header = request.META.get("HTTP_AUTHORIZATION")
        return WorkerPrincipal(authenticate_runner(header, runner, network=rate_limit_key(request))), None


class RunnerClaimView(BencherView):
    """`/v0/runners/{runner}/jobs`."""

    authentication_classes = (RunnerKeyAuthentication,)
    permission_classes = (IsWorker,)
    schema = openapi.RunnerClaimSchema()

    @openapi.CLAIM_RUNNER_JOB_DOCS
    def post(self, request: Request, runner: str) -> Response | NothingToClaim:
        """Claim the next job, or return `null` if there is none until `poll_timeout`."""
        RunnerClaimInput(data=body_of(request)).is_valid(raise_exception=True)
        worker = worker_of(request)
        _count_first_attempt(request, worker)
        found = claim_for_runner(worker)
        if found.claimed is None:
            return NothingToClaim(b"null", offer=found.offer)
        if client_disconnected(request):
            give_back(found.claimed.lease.lease_ulid, worker)
        return Response(found.claimed_job)


class SocketPathView(BencherView):
    """The paths of the two sockets, for requests that are no WebSocket handshakes."""

    authentication_classes = ()
    permission_classes = ()
    is_public = True

    @openapi.NO_DOCS
    def get(self, request: Request, **kwargs: Any) -> Never:
        """Refuse a request without an upgrade."""
        raise bad_request("Upgrade: Must be `websocket`. This path is a WebSocket.")


def _count_first_attempt(request: Request, worker: Worker) -> None:
    """Count the request once, however often it attempts to claim.

    Raises:
        ApiError: 429; the runner has sent too many requests.
    """
    attempt = poll_attempt(request)
    if (attempt is not None and attempt.offer is not None) or "bencher.is_counted" in request.META:
        return
    request.META["bencher.is_counted"] = True
    register_connect(worker)
