"""The example of an upload in the OpenAPI schema."""

from drf_spectacular.utils import OpenApiExample

_AT = "2026-03-17T20:00:10Z"
_END = "2026-03-17T20:01:02Z"


def _listed(*items: dict[str, object], total: int) -> dict[str, object]:
    return {"items": list(items), "total": total, "truncated": total > len(items)}


UPLOAD = OpenApiExample(
    "an install step that reads a key",
    request_only=True,
    value={
        "schema_version": "run.v1",
        "metadata": {
            "org_slug": "acme",
            "project_slug": "web",
            "repo_url": "https://github.com/acme/web.git",
            "git_commit": "a" * 40,
            "git_ref": "refs/heads/main",
            "pull_request_number": 7,
            "command": ["pnpm", "install"],
            "working_directory": ".",
            "trigger_kind": "pull_request",
            "trigger_actor": "github-app",
            "worker_id": "wrk_01j00000000000000000000000",
            "job_id": "rtj_01j00000000000000000000001",
            "retry_of_job_id": None,
            "sandbox": {
                "tool_version": "6.1",
                "allow_network": True,
                "allow_exec": True,
                "timeout_seconds": 300,
                "trace_only": False,
                "enforced_layers": ["landlock", "no_new_privileges", "no_capabilities", "seccomp", "tracer_outside"],
            },
            "started_at": _AT,
            "finished_at": _END,
        },
        "outcome": {"kind": "exited", "exit_code": 0, "signal": None},
        "summary": {
            "timestamp": _END,
            "total_syscalls": 51230,
            "unique_syscalls": 61,
            "denied_count": 0,
            "process_count": 24,
            "duration_ms": 51800,
            "exit_code": 0,
        },
        "counts": {
            "files_accessed": 1840,
            "network_attempts": 3,
            "suspicious_activity": 1,
            "trace_lines": 51254,
            "bad_lines": 0,
        },
        "processes": _listed(
            {
                "pid": 71,
                "parent_pid": None,
                "is_root": True,
                "exec_count": 1,
                "exec_paths": ["/usr/bin/pnpm"],
                "first_seen": _AT,
                "ended_at": _END,
                "exit_code": 0,
                "signal": None,
            },
            total=24,
        ),
        "files": _listed(
            {
                "path": "~/.ssh/id_rsa",
                "ops": ["read"],
                "count": 1,
                "failed": 1,
                "denied": 0,
                "sensitive": True,
            },
            total=1840,
        ),
        "network_attempts": _listed(
            {"addr": "203.0.113.9:443", "family": "inet", "port": 443, "count": 6, "outcome": "failed", "errno": 101},
            total=3,
        ),
        "suspicious_activity": _listed(
            {
                "rule": "credential_read",
                "severity": "high",
                "reason": "Reads a file that holds credentials or keys",
                "detail": "~/.ssh/id_rsa",
                "count": 1,
            },
            total=1,
        ),
    },
)
