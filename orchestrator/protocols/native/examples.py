"""Document 000's examples, and what is answered to them, as OpenAPI shows it."""

from typing import Any

from drf_spectacular.utils import OpenApiExample


def answered(summary: str, value: Any, *statuses: str) -> OpenApiExample:
    return OpenApiExample(summary, value, response_only=True, status_codes=list(statuses or ("200",)))


SUBMIT = OpenApiExample(
    "a pull request's install step",
    request_only=True,
    value={
        "org_slug": "sandtrace",
        "project_slug": "web",
        "source": {
            "kind": "github",
            "repo_url": "https://github.com/cc-consulting-nv/web.git",
            "owner": "cc-consulting-nv",
            "repo": "web",
            "ref": "refs/heads/main",
            "git_commit": "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf",
            "pull_request_number": 98,
        },
        "execution": {
            "working_directory": ".",
            "command": ["pnpm", "install"],
            "timeout_seconds": 300,
            "allow_network": True,
            "allow_exec": True,
        },
        "trigger": {"kind": "pull_request", "actor": "github-app"},
    },
)
CLAIM = OpenApiExample(
    "a worker of the shared pool",
    request_only=True,
    value={
        "worker_id": "wrk_01kkygmfjf4j9s26hzd0h93j0r",
        "pool": "shared-linux",
        "capabilities": {"linux": True, "ptrace": True, "namespaces": True},
    },
)
COMPLETE = OpenApiExample(
    "the run that ingest acknowledged",
    request_only=True,
    value={
        "result": {
            "status": "uploaded",
            "ingest_run_id": "run_20260317143329_bd39b25f6f31",
            "uploaded_at": "2026-03-17T20:03:20Z",
        }
    },
)
FAIL = OpenApiExample(
    "the sandbox did not start",
    request_only=True,
    value={
        "result": {
            "status": "failed",
            "reason": "sandbox_apply_failed",
            "message": "Namespace creation failed: EPERM",
        }
    },
)
SUBMIT_STEPS = OpenApiExample(
    "two steps on a commit",
    request_only=True,
    value={
        "org_slug": "sandtrace",
        "project_slug": "web",
        "job_type": "steps",
        "spec": {
            "name": "unit-tests",
            "steps": ["make build", "make test"],
            "environment": {"CI": "true"},
            "artifacts": [{"type": "junit", "path_glob": "reports/**/*.xml"}],
            "timeout_seconds": 600,
            "source": SUBMIT.value["source"],
        },
        "trigger": {"kind": "manual", "actor": "alice"},
    },
)
SUBMIT_ANY = OpenApiExample(
    "document 000's job",
    request_only=True,
    value={
        **{name: SUBMIT.value[name] for name in ("org_slug", "project_slug", "trigger")},
        "job_type": "runtime",
        "spec": {name: SUBMIT.value[name] for name in ("source", "execution")},
    },
)
_STEPS_DONE = [
    {
        "index": 0,
        "exit_code": 0,
        "started_at": "2026-03-17T20:00:05Z",
        "finished_at": "2026-03-17T20:01:05Z",
    },
    {
        "index": 1,
        "exit_code": 2,
        "started_at": "2026-03-17T20:01:05Z",
        "finished_at": "2026-03-17T20:03:05Z",
    },
]
COMPLETE_STEPS = OpenApiExample(
    "the steps have succeeded",
    request_only=True,
    value={
        "result": {
            "status": "succeeded",
            "exit_code": 0,
            "steps": _STEPS_DONE[:1],
            "files": [{"type": "junit", "path": "reports/unit.xml", "size_bytes": 1823, "sha256": "3b4c6e0f" * 8}],
        }
    },
)
FAIL_STEPS = OpenApiExample(
    "the second step failed",
    request_only=True,
    value={
        "result": {
            "status": "failed",
            "reason": "command_failed",
            "message": "Step 2 of 2 ended with code 2.",
            "exit_code": 2,
            "steps": _STEPS_DONE,
        }
    },
)
CANCEL = OpenApiExample("a reason", {"reason": "superseded by another push"}, request_only=True)
RETRY = OpenApiExample("a reason", {"reason": "the registry was down"}, request_only=True)
HEARTBEAT = OpenApiExample(
    "a phase and how far it is",
    {"phase": "executing", "progress": {"percent": 40, "current_step": "pnpm install", "step_index": 1}},
    request_only=True,
)
REPORT = OpenApiExample("the next phase", {"phase": "executing"}, request_only=True)
CHUNK = OpenApiExample("ten bytes", {"seq": 0, "chunk": "UHJvZ3Jlc3MK"}, request_only=True)

_JOB: dict[str, Any] = {
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "status": "queued",
    "state": "queued",
    "created_at": "2026-03-17T20:00:00Z",
    "started_at": None,
    "finished_at": None,
    **{name: SUBMIT.value[name] for name in ("org_slug", "project_slug", "source", "execution", "trigger")},
    "pool": "shared-linux",
    "priority": 200,
    "concurrency_key": None,
    "attempt": 1,
    "retry_of": None,
    "root_job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "cancel_requested": False,
    "ingest_run_id": None,
    "exit_code": None,
    "failure": None,
    "correlation_id": "0af7651916cd43dd8448eb211c80319c",
}
_EVENT = {
    "event_id": "evt_01kkygkagr5v0c2j6zp6m0n1q4",
    "seq": 1,
    "event_type": "job.queued",
    "created_at": "2026-03-17T20:00:00Z",
    "actor": {"kind": "client", "id": "token ci"},
    "worker_id": None,
    "from_state": None,
    "to_state": "queued",
    "fence": 0,
    "payload": {"trigger": "pull_request", "trigger_actor": "github-app"},
    "hash": "3b4c6e0f5d1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4",
}
_TOLD = {"job_id": _JOB["job_id"], "status": "running"}
_WAITING: dict[str, Any] = {
    "queue_position": 3,
    "pending_reason": {
        "code": "behind",
        "message": "Number 3 in the queue of the pool shared-linux; 2 workers that could run it are alive.",
        "pool": "shared-linux",
        "workers_alive": 2,
        "position": 3,
    },
}
_DETAILS: dict[str, Any] = _WAITING | {
    "progress": None,
    "last_event": _EVENT,
    "depends_on": [],
    "retries": [],
    "artifacts": [],
    "explanation": None,
}
JOB = answered("a new job", _JOB, "200", "201")
JOB_LISTED = answered("a job that waits", _JOB | _WAITING)
JOB_IN_DETAIL = answered("a job that waits", _JOB | _DETAILS)
_OWN = ("org_slug", "project_slug", "trigger", "job_type")
_ANY_JOB = {
    **{name: value for name, value in _JOB.items() if name not in {"source", "execution"}},
    **{name: SUBMIT_STEPS.value[name] for name in _OWN},
    "spec": SUBMIT_STEPS.value["spec"]
    | {"working_directory": ".", "caches": [], "image": None, "allow_network": False},
    "batch_id": None,
    "result": None,
}
ANY_JOB = answered("a new job", _ANY_JOB, "200", "201")
ANY_JOB_LISTED = answered("a job that waits", _ANY_JOB | _WAITING)
ANY_JOB_IN_DETAIL = answered("a job that waits", _ANY_JOB | _DETAILS)
EVENTS = answered("its beginning", {"results": [_EVENT], "next_after": None})
LEASE = answered(
    "a job to do",
    {
        "lease_id": "rtl_01kkygn4z3fkef0g4tgm6g3b1j",
        "job": {
            **{name: _JOB[name] for name in ("job_id", "org_slug", "project_slug", "source", "trigger")},
            "job_type": "runtime",
            "execution": SUBMIT.value["execution"]
            | {"least_isolation": "namespaces", "egress": ["registry.example.org"]},
            "attempt": 1,
            "retry_of": None,
            "fence": 1,
            "heartbeat_interval_seconds": 20,
            "lease_ttl_seconds": 120,
            "acknowledge_within_seconds": 30,
        },
        "lease_expires_at": "2026-03-17T20:02:30Z",
    },
    "201",
)
TOLD = answered("it runs", _TOLD)
UPLOADED = answered("it has ended", _TOLD | {"status": "uploaded"})
FAILED = answered("it has ended", _TOLD | {"status": "failed"})
CANCELED = answered("it has ended", _TOLD | {"status": "canceled"})
RELEASED = answered("it waits again", _TOLD | {"status": "queued"})
RENEWED = answered(
    "a cancel was requested",
    _TOLD
    | {
        "lease_expires_at": "2026-03-17T20:04:30Z",
        "cancel_requested": True,
        "cancel_reason": "requested",
        "cancel_deadline_seconds": 21.5,
    },
)
CHUNK_TAKEN = answered("taken", {"next_seq": 1, "truncated": False})
