"""Converts the body of `POST /api/jobs` to a submission."""

from typing import Any, Final

from orchestrator.core.datetimes import format_timestamp, parse_timestamp
from orchestrator.core.idempotency import IdempotentRequest, fingerprint_of
from orchestrator.http.api.calls import ApiCall
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.auth.callers import client_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.jobs.projects import organization_of, project_of
from orchestrator.protocols.stella.visible_jobs import job_ulid_of
from orchestrator.services.submission import Submission
from runtime_jobs.errors import PayloadDigestMismatch
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import PayloadSpec, public_digest

OPERATION: Final = "submit orchestration job"
KEY: Final = "idempotencyKey"


def submission_of(call: ApiCall, validated: dict[str, Any]) -> Submission:
    """Return the submission for a validated body.

    Raises:
        LifecycleError: The tenant is not visible, has no project for the job, or the digest is not the payload's.
    """
    organization = organization_of(client_of(call), validated["tenant"])
    spec = PayloadSpec(
        job_type=validated["jobType"],
        payload=validated["payload"],
        timeout_seconds=validated["timeoutSeconds"] or organization.plan.max_timeout_seconds,
        cursors=validated["cursors"],
        requested_at=format_timestamp(parse_timestamp(validated["requestedAt"])),
    )
    _require_digest(spec, validated["payloadDigest"])
    return Submission(
        org_slug=organization.slug,
        project_slug=project_of(organization, validated["project"]),
        spec=spec,
        trigger_kind="manual",
        trigger_actor=validated["requestedBy"],
        correlation_id=validated["correlationId"] or call.context.correlation_id,
        source_address=call.address,
        depends_on=tuple(map(job_ulid_of, validated["dependencies"])),
        priority=PRIORITIES[validated["priority"]] if validated["priority"] else None,
        job_ulid=job_ulid_of(validated["jobId"]) if validated["jobId"] else None,
    )


def _require_digest(spec: PayloadSpec, sent: str | None) -> None:
    digest = public_digest(spec.digest)
    if sent is not None and sent != digest:
        raise PayloadDigestMismatch(f"payloadDigest: the canonical payload (RFC 8785) has the digest {digest}.")


def idempotency_of(call: ApiCall, validated: dict[str, Any]) -> IdempotentRequest | None:
    """Return the idempotency key of the header or of the body, which are twins.

    The key is no part of the fingerprint: the same request may bring it by the other way.

    Raises:
        ApiError: `invalid`: both are there and differ.
    """
    body = {name: value for name, value in call.body.items() if name != KEY}
    by_header, in_body = idempotent_request(call, OPERATION, body), validated[KEY]
    if in_body is None:
        return by_header
    if by_header is not None and by_header.key != in_body:
        detail = f"{KEY}: differs from the header Idempotency-Key. Send one of them, or the same value."
        raise ApiError(400, "invalid", detail, errors={KEY: [detail]})
    return IdempotentRequest(client_of(call).key, OPERATION, in_body, fingerprint_of(body))
