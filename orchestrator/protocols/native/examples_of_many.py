"""The calls for many, as OpenAPI shows them: made of the examples for one."""

from typing import Any

from drf_spectacular.utils import OpenApiExample

from orchestrator.protocols.native import examples
from orchestrator.protocols.native.examples import answered

_LEASE = {"lease_id": examples.LEASE.value["lease_id"]}
_STALE = {
    "lease_id": "rtl_01kkygn4z3w8r5d1v0h2c6x9qe",
    "status": 409,
    "error": {
        "type": "urn:runtime-orchestrator:problem:stale_lease",
        "title": "Conflict",
        "status": 409,
        "detail": "This lease no longer speaks for its job.",
        "code": "stale_lease",
        "request_id": "req_01kkygn50a7m3w9k5f2t8x1c4d",
        "reason": "lease_expired",
    },
}


def _sent(summary: str, body: dict[str, Any]) -> OpenApiExample:
    return OpenApiExample(
        summary, {"leases": [_LEASE | body, {"lease_id": _STALE["lease_id"]} | body]}, request_only=True
    )


def _told(one: OpenApiExample) -> OpenApiExample:
    fine = _LEASE | {"status": 200, "body": one.value}
    return answered("one counts, the other one is stale", {"results": [fine, _STALE]})


def _submitted(job: OpenApiExample) -> OpenApiExample:
    return answered("a new job", {"results": [{"status": 201, "body": job.value}]})


def _submits(job: OpenApiExample) -> OpenApiExample:
    return OpenApiExample("a list of jobs", {"jobs": [job.value]}, request_only=True)


CLAIM_MANY = OpenApiExample("for all free slots", examples.CLAIM.value | {"max_leases": 8}, request_only=True)
LEASES = answered("jobs to do", {"leases": [examples.LEASE.value]}, "201")
ACKNOWLEDGE_MANY = _sent("two leases", {})
TOLD_MANY = _told(examples.TOLD)
HEARTBEAT_MANY = _sent("two leases", examples.HEARTBEAT.value)
RENEWED_MANY = _told(examples.RENEWED)
COMPLETE_MANY = _sent("two leases", examples.COMPLETE_STEPS.value)
UPLOADED_MANY = _told(examples.UPLOADED)
FAIL_MANY = _sent("two leases", examples.FAIL.value)
FAILED_MANY = _told(examples.FAILED)
SUBMIT_MANY, SUBMITTED_MANY = _submits(examples.SUBMIT), _submitted(examples.JOB)
SUBMIT_MANY_ANY, SUBMITTED_MANY_ANY = _submits(examples.SUBMIT_STEPS), _submitted(examples.ANY_JOB)
