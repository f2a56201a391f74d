"""What GitHub, and whoever reads its list of deliveries, is told."""

from collections.abc import Sequence

from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework import serializers
from rest_framework.response import Response

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.github.handler import DeliveryResult
from orchestrator.protocols.github.models import Outcome
from runtime_jobs.errors import QuotaExceeded
from runtime_jobs.models import Job
from runtime_jobs.states import WAITING_STATES, FailureReason, JobState

# Document 001's words for a run. Ours has one job: the newest attempt of it is the run's.
ENDED = {JobState.SUCCEEDED: "SUCCESS", JobState.FAILED: "FAILED", JobState.CANCELED: "CANCELED"}
STATES = ["QUEUED", "RUNNING", "CANCEL_REQUESTED", "TIMEOUT", *ENDED.values()]
RANK = (Outcome.CREATED, Outcome.DUPLICATE, Outcome.REFUSED, Outcome.IGNORED)


class RunTakenUp(serializers.Serializer):
    """`run_id` and `state` of the run; only `refused`, the code of the reason, where there is none."""

    run_id = serializers.CharField(required=False)
    state = serializers.ChoiceField(choices=STATES, required=False)
    refused = serializers.CharField(required=False)


def answer(taken: Sequence[DeliveryResult]) -> Response:
    """Of several projects' outcomes the one that says most: each is in the admin.

    A refusal that passes by itself (a submit quota) is a 429, so that GitHub lists the delivery as failed and it can be
    redelivered: the same delivery is then taken afresh. Any other refusal is a 202: sending again would not help.

    Raises QuotaExceeded."""
    best = min(taken, key=lambda one: RANK.index(one.outcome))
    if best.first is not None:
        body = {"run_id": best.first.batch_ulid, "state": _state(best.first.batch_ulid)}
        return Response(body, status=201 if best.outcome == Outcome.CREATED else 202)
    exceeded = next((one.refusal for one in taken if isinstance(one.refusal, QuotaExceeded)), None)
    if exceeded is not None:
        raise exceeded
    return Response({"refused": best.refusal.code} if best.refusal else None, status=202)


def _state(batch_ulid: str | None) -> str:
    job = Job.objects.filter(batch__batch_ulid=batch_ulid).order_by("-id").first()
    return word_of(job) if job else "CANCELED"


def word_of(job: Job) -> str:
    if not job.is_final and job.cancel_requested_at is not None:
        return "CANCEL_REQUESTED"
    if job.state == JobState.FAILED and job.failure_reason == FailureReason.TIMED_OUT:
        return "TIMEOUT"
    return ENDED.get(JobState(job.state), "QUEUED" if job.state in WAITING_STATES else "RUNNING")


_ANY_OBJECT = {"type": "object", "description": "GitHub's payload.", "additionalProperties": True}
_FORM = {
    "type": "object",
    "properties": {"payload": {"type": "string", "description": "The same, as JSON."}},
    "required": ["payload"],
}
_RUN = {"run_id": "rtb_01kkygkagq0jk17bx6y1w8c3df", "state": "QUEUED"}
RECEIVE = operation_docs(
    "receive_github_webhook",
    request={"application/json": _ANY_OBJECT, "application/x-www-form-urlencoded": _FORM},
    responses={
        201: OpenApiResponse(RunTakenUp, description="A new run."),
        202: OpenApiResponse(
            RunTakenUp, description="A run that was there, or `refused`; without a body where there is nothing to do."
        ),
    },
    examples=[OpenApiExample("run", _RUN, response_only=True)],
    codes=("queue_full", "submit_rate_exceeded", "webhook_not_configured"),
)
