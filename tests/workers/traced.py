"""Traces for tests: recorded ones from `traces/`, and ones made line by line in strace's form."""

from pathlib import Path
from typing import Any

from workers.engines.contract import EgressPolicy, MountPoints, RunResult, RunSpec
from workers.report.report import RunReport

RECORDED = Path(__file__).parent / "traces"
METADATA = {
    "org_slug": "acme",
    "project_slug": "web",
    "repo_url": "https://github.com/acme/web.git",
    "git_commit": "a" * 40,
    "command": ["sh", "install.sh"],
    "trigger_kind": "manual",
    "worker_id": "wrk_01j00000000000000000000000",
    "job_id": "rtj_01j00000000000000000000001",
}
ROOT = 500
START = 1_795_000_000.0


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.strace").read_bytes()


def line(call: str, *, pid: int = ROOT, at: float = 0.0) -> bytes:
    return f"{pid} {START + at:.6f} {call}\n".encode()


def trace(*calls: str) -> bytes:
    """The command's own first execve, then these calls of it."""
    first = 'execve("/usr/bin/sh", ["sh", "install.sh"], 0x7f00 /* 5 vars */) = 0'
    return b"".join(line(call, at=at / 1000) for at, call in enumerate((first, *calls)))


def spec(**changes: Any) -> RunSpec:
    return RunSpec(**{"argv": ("sh",), "workspace": Path("/w"), "slot": 0, "timeout_seconds": 300.0} | changes)


def result(**changes: Any) -> RunResult:
    values = {"kind": "exited", "exit_code": 0, "started_at": START, "finished_at": START + 2.5}
    return RunResult(**values | {"enforced_layers": ("user_ns", "tracer_outside"), "tool_version": "6.1"} | changes)


def payload_of(
    data: bytes, *, expected: tuple[str, ...] = (), egress: EgressPolicy | None = None, **end: Any
) -> dict[str, Any]:
    report = RunReport(MountPoints(), expected=expected)
    report.feed(data)
    return report.payload(metadata=METADATA, result=result(**end), spec=spec(egress=egress))


def fired(payload: dict[str, Any]) -> dict[str, list[str]]:
    """Rule → details."""
    found: dict[str, list[str]] = {}
    for item in payload["suspicious_activity"]["items"]:
        found.setdefault(item["rule"], []).append(item["detail"])
    return found
