"""The view of the heartbeat."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.calls import IdentifiedTokens
from orchestrator.http.api.fields import parse
from orchestrator.http.asgi.client_identity import identify_tokens
from orchestrator.protocols.shithub.authentication import authenticate_runner, bearer_of, client_of, require_signer
from orchestrator.protocols.shithub.base_view import NO_CONTENT, ShithubView, read_object
from orchestrator.protocols.shithub.heartbeat import openapi
from orchestrator.protocols.shithub.heartbeat.operation import receive_heartbeat
from orchestrator.protocols.shithub.heartbeat.report import HeartbeatReport
from orchestrator.protocols.shithub.heartbeat.serializers import ActionsHeartbeatInput
from orchestrator.protocols.shithub.heartbeat.wire import claim_document
from orchestrator.protocols.shithub.rate_limits import WindowState, count_heartbeat


class RunnerHeartbeatView(ShithubView):
    """`POST /api/v1/runners/heartbeat`."""

    credential = "registration"
    window: WindowState | None = None

    @openapi.HEARTBEAT_DOCS
    def post(self, request: Request) -> Response:
        """Record that a runner is alive, and claim the next job for it. Its labels replace the stored ones."""
        require_signer()
        runner_id = authenticate_runner(self.header())
        self.window = count_heartbeat(runner_id)
        raw = request.body
        body = parse(ActionsHeartbeatInput, read_object(raw) if raw.strip() else {})
        claimed = receive_heartbeat(runner_id, HeartbeatReport.of(body))
        document = None if claimed is None else claim_document(claimed)
        tokens = (bearer_of(self.header()), *((document["token"],) if document else ()))
        identify_tokens(request, IdentifiedTokens(client_of(runner_id), tokens))
        return Response(status=NO_CONTENT) if document is None else Response(document)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the headers of the limit to every response that it concerns."""
        final = super().finalize_response(request, response, *args, **kwargs)
        for name, value in (self.window.headers if self.window else {}).items():
            final.headers.setdefault(name, value)
        return final
