"""Document 000's example requests, as OpenAPI shows them."""

from drf_spectacular.utils import OpenApiExample

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
