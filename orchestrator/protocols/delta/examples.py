"""The messages of document 001, as OpenAPI shows them."""

from typing import Any

from drf_spectacular.utils import OpenApiExample

_JOB = "rtj_01kkygkagq0jk17bx6y1w8c3df"
_LEASE = "rtl_01kkygn4z3fkef0g4tgm6g3b1j"
_SAID = {"lease_id": _LEASE, "runner_id": "runner-7"}
_LOG = {"type": "log", "uri": "s3://artifacts/runs/1/jobs/1/log.txt"}


def sent(summary: str, value: Any) -> OpenApiExample:
    return OpenApiExample(summary, value, request_only=True)


def answered(summary: str, value: Any, status: str = "200") -> OpenApiExample:
    return OpenApiExample(summary, value, response_only=True, status_codes=[status])


WANTED = sent("a runner asks for work", {"type": "LeaseRequest", "runner_id": "runner-7", "wait_seconds": 20})
GRANTED = answered(
    "a job to do",
    {
        "type": "LeaseGranted",
        "run_id": "rtb_01kkygk9z3s4mm0t6qj3v9p1xw",
        "job_id": _JOB,
        "attempt_id": _JOB,
        "attempt_number": 1,
        "lease_id": _LEASE,
        "lease_ttl_seconds": 120,
        "heartbeat_interval_seconds": 20,
        "max_runtime_seconds": 3600,
        "job_spec": {
            "name": "unit-tests",
            "workdir": ".",
            "steps": ["make test"],
            "env": {"CI": "true"},
            "artifacts": [{"type": "junit", "path_glob": "**/*.xml"}],
            "caches": [{"type": "deps", "key": "go:1f", "paths": ["~/go/pkg/mod"], "read_only": False}],
        },
    },
)
ACK = sent("a runner takes it up", {"type": "AckLease", "job_id": _JOB, **_SAID, "accepted_at": "2026-01-04T08:00:00Z"})
ACCEPTED = answered(
    "taken up",
    {
        "type": "LeaseAccepted",
        "lease_id": _LEASE,
        "job_id": _JOB,
        "heartbeat_interval_seconds": 20,
        "max_runtime_seconds": 3600,
    },
)
HEARTBEAT = sent(
    "it runs",
    {
        "type": "Heartbeat",
        **_SAID,
        "progress": {"percent": 35, "current_step": "make test", "step_index": 0, "message": "Running tests"},
        "log_cursor": {"bytes_sent": 1048576},
        "ts": "2026-01-04T08:00:20Z",
    },
)
HEARTBEAT_ACK = answered(
    "a cancel was requested",
    {
        "type": "HeartbeatAck",
        "lease_id": _LEASE,
        "extend_lease": True,
        "new_lease_ttl_seconds": 120,
        "cancel_requested": True,
        "cancel_deadline_seconds": 22,
        "cancel_reason": "RUN_CANCELED",
    },
)
COMPLETE = sent(
    "it is done",
    {
        "type": "Complete",
        **_SAID,
        "status": "SUCCEEDED",
        "exit_code": 0,
        "timings": {"started_at": "2026-01-04T08:00:05Z", "finished_at": "2026-01-04T08:03:12Z"},
        "artifacts": [_LOG],
        "summary": "All tests passed.",
    },
)
COMPLETE_ACK = answered("taken", {"type": "CompleteAck", "lease_id": _LEASE, "accepted": True})
CANCEL_ACK = sent(
    "it has stopped",
    {
        "type": "CancelAck",
        **_SAID,
        "final_status": "CANCELED",
        "ts": "2026-01-04T08:01:25Z",
        "artifacts": [_LOG],
        "summary": "Canceled during step: make test.",
    },
)
CANCEL_FINALIZED = answered(
    "canceled", {"type": "CancelFinalized", "lease_id": _LEASE, "job_id": _JOB, "final_status": "CANCELED"}
)
STALE = answered(
    "the lease counts no more",
    {
        "type": "StaleLease",
        "lease_id": _LEASE,
        "reason": "LEASE_EXPIRED",
        "error": {
            "code": "STALE_LEASE",
            "message": "stale lease",
            "lease_id": _LEASE,
            "details": {"reason": "lease_expired", "job_status": "failed"},
        },
    },
    "409",
)
