"""The view of the heartbeat."""

from collections.abc import Callable
from dataclasses import replace

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.calls import ApiAnswer, ApiCall, IdentifiedTokens
from orchestrator.http.api.fields import parse
from orchestrator.http.asgi.client_identity import identify_tokens
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.shithub.authentication import authenticate_runner, bearer_of, client_of, require_signer
from orchestrator.protocols.shithub.base_view import NO_CONTENT, ShithubView, read_object
from orchestrator.protocols.shithub.errors import answer_to
from orchestrator.protocols.shithub.heartbeat import openapi
from orchestrator.protocols.shithub.heartbeat.operation import receive_heartbeat
from orchestrator.protocols.shithub.heartbeat.report import HeartbeatReport
from orchestrator.protocols.shithub.heartbeat.serializers import ActionsHeartbeatInput
from orchestrator.protocols.shithub.heartbeat.wire import claim_document
from orchestrator.protocols.shithub.heartbeat_rate import count_heartbeat


class RunnerHeartbeatView(ShithubView):
    """`POST /api/v1/runners/heartbeat`."""

    credential = "registration"

    @openapi.HEARTBEAT_DOCS
    def post(self, request: Request) -> Response:
        """Record that a runner is alive, and claim the next job for it. Its labels replace the stored ones."""
        answer = self.answer(self.header(), self.body, context_of(request).request_id)
        if answer.identified is not None:
            identify_tokens(request, answer.identified)
        return Response(answer.data, status=answer.status, headers=answer.headers)

    @classmethod
    def answer_call(cls, call: ApiCall, raw: bytes) -> ApiAnswer:
        """Answer a heartbeat that takes the fast path."""
        return cls.answer(call.headers.get("Authorization"), lambda: raw, call.context.request_id)

    @staticmethod
    def answer(header: str | None, read: Callable[[], bytes], request_id: str) -> ApiAnswer:
        """Return the answer to a heartbeat. Each one that the limit concerns has its headers, also a refusal.

        Args:
            header: The value of `Authorization`, or None.
            read: Returns the body.
            request_id: The id of the request.
        """
        require_signer()
        runner_id = authenticate_runner(header)
        rate_headers = count_heartbeat(runner_id)
        try:
            answer = _claim(runner_id, bearer_of(header), read())
        except Exception as error:  # noqa: BLE001 as DRF: every exception has a response
            answer = answer_to(error, request_id)
        return replace(answer, headers=rate_headers | answer.headers)


def _claim(runner_id: int, registration_token: str, raw: bytes) -> ApiAnswer:
    body = parse(ActionsHeartbeatInput, read_object(raw) if raw.strip() else {})
    claimed = receive_heartbeat(runner_id, HeartbeatReport.of(body))
    if claimed is None:
        return ApiAnswer(None, NO_CONTENT, identified=IdentifiedTokens(client_of(runner_id), (registration_token,)))
    document = claim_document(claimed)
    tokens = (registration_token, document["token"])
    return ApiAnswer(document, identified=IdentifiedTokens(client_of(runner_id), tokens))
