"""The views of the calls about a job. Each uses a token of the job; the last one the registration token."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.calls import ApiAnswer, ApiCall, IdentifiedTokens
from orchestrator.http.asgi.client_identity import identify_tokens
from orchestrator.job_tokens.claims import TokenPurpose, sign
from orchestrator.protocols.shithub.authentication import (
    authenticate_runner,
    bearer_of,
    client_of,
    job_key,
    read_job_token,
    require_signer,
)
from orchestrator.protocols.shithub.base_view import ShithubView
from orchestrator.protocols.shithub.jobs import effects, openapi, optimistic
from orchestrator.protocols.shithub.jobs.calls import CallAnswer, CallOutcome, JobCall, perform_call
from orchestrator.protocols.shithub.jobs.chains import start_chain
from orchestrator.protocols.shithub.wire import format_seconds, next_token_members


class JobCallView(ShithubView):
    """Base of the views that use a token of the job."""

    credential: ClassVar[str] = "job"

    effect: ClassVar[Callable[..., CallAnswer]]  # its first arguments are the call and the body

    # Performs the whole call without a transaction in its steady case: see `optimistic`.
    attempt: ClassVar[Callable[..., CallOutcome] | None] = None

    def respond(self, request: Request, job_text: str, *arguments: Any) -> Response:
        """Return the response to a call.

        Args:
            request: The request.
            job_text: The key of the job in the path.
            arguments: Further arguments of the effect.
        """
        answer = self.answer(self.header(), self.body, job_text, *arguments)
        if answer.identified is not None:
            identify_tokens(request, answer.identified)
        return Response(answer.data, status=answer.status)

    @classmethod
    def answer_call(cls, call: ApiCall, raw: bytes, job_text: str) -> ApiAnswer:
        """Answer a call that takes the fast path."""
        return cls.answer(call.headers.get("Authorization"), lambda: raw, job_text)

    @classmethod
    def answer(cls, header: str | None, read: Callable[[], bytes], job_text: str, *arguments: Any) -> ApiAnswer:
        """Verify the token, apply the effect, and return its answer with the next token.

        Args:
            header: The value of `Authorization`, or None.
            read: Returns the body.
            job_text: The key of the job in the path.
            arguments: Further arguments of the effect.
        """
        require_signer()
        job_id = job_key(job_text)
        token = read_job_token(header)
        raw = read()

        def apply(call: JobCall) -> CallAnswer:
            return cls.effect(call, raw, *arguments)

        attempt = cls.attempt and partial(cls.attempt, token=token, job_id=job_id, raw=raw)
        outcome = perform_call(token, job_id, apply, attempt)
        if outcome.refusal is not None:
            raise outcome.refusal
        assert outcome.answer is not None  # noqa: S101 a call without a refusal has an answer
        body, status, following = outcome.answer.body, outcome.answer.status, outcome.next_token
        if following is None:
            return ApiAnswer(body, status)
        members = next_token_members(following)
        identified = IdentifiedTokens(client_of(token.runner_id), (members["next_token"],))
        return ApiAnswer(body | members, status, identified=identified)


class JobStatusView(JobCallView):
    """`POST /api/v1/jobs/{job_id}/status`."""

    effect = staticmethod(effects.change_job_status)

    @openapi.JOB_STATUS_DOCS
    def post(self, request: Request, job_id: str) -> Response:
        """Report the status of the job. The first end counts; the same end again is accepted."""
        return self.respond(request, job_id)


class StepStatusView(JobCallView):
    """`POST /api/v1/jobs/{job_id}/steps/{step_id}/status`."""

    effect = staticmethod(effects.change_step_status)

    @openapi.STEP_STATUS_DOCS
    def post(self, request: Request, job_id: str, step_id: str) -> Response:
        """Report the status of a step. The first end counts; the same end again is accepted."""
        return self.respond(request, job_id, step_id)


class LogView(JobCallView):
    """`POST /api/v1/jobs/{job_id}/logs`."""

    effect = staticmethod(effects.append_log)
    attempt = staticmethod(optimistic.append_log)

    @openapi.LOG_DOCS
    def post(self, request: Request, job_id: str) -> Response:
        """Append a chunk to the log of a step. A number that is stored already is accepted and changes nothing."""
        return self.respond(request, job_id)


class ArtifactUploadView(JobCallView):
    """`POST /api/v1/jobs/{job_id}/artifacts/upload`."""

    effect = staticmethod(effects.begin_artifact)

    @openapi.ARTIFACT_DOCS
    def post(self, request: Request, job_id: str) -> Response:
        """Announce an artifact of the run, and return the address of its upload."""
        return self.respond(request, job_id)


class CancelCheckView(JobCallView):
    """`POST /api/v1/jobs/{job_id}/cancel-check`."""

    effect = staticmethod(effects.check_cancel)
    attempt = staticmethod(optimistic.check_cancel)

    @openapi.CANCEL_CHECK_DOCS
    def post(self, request: Request, job_id: str) -> Response:
        """Return whether a cancel of the job was requested."""
        return self.respond(request, job_id)


class TokenView(ShithubView):
    """`POST /api/v1/jobs/{job_id}/token`."""

    credential: ClassVar[str] = "registration"

    @openapi.TOKEN_DOCS
    def post(self, request: Request, job_id: str) -> Response:
        """End all older tokens of the job, and return the first tokens of a new chain. The body is not read."""
        require_signer()
        runner_id = authenticate_runner(self.header())
        tokens = start_chain(runner_id=runner_id, job_id=job_key(job_id))
        api_token = tokens[TokenPurpose.API]
        signed = sign(api_token)
        identified = IdentifiedTokens(client_of(runner_id), (bearer_of(self.header()), signed))
        identify_tokens(request, identified)
        body = {
            "token": signed,
            "expires_at": format_seconds(api_token.expires_at),
            "checkout_token": sign(tokens[TokenPurpose.CHECKOUT]),
        }
        return Response(body)
