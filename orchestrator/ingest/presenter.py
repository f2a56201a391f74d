"""Prepares a run's payload for its page: findings, processes, network, files, resources. No I/O."""

import errno
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.ingest.formatting import format_bytes, format_seconds
from orchestrator.ingest.timeline import ProcessTimeline, timeline
from runtime_jobs.models.tenants import JobTrace

SEVERITIES = ("critical", "high", "medium", "low")  # of findings, the worst first
METER_WIDTH = 1000  # of a full meter, in units of its view box
Item = dict[str, Any]


@dataclass(frozen=True)
class RuleFindings:
    """All findings of one rule."""

    name: str
    severity: str
    reason: str
    findings: list[Item]


@dataclass(frozen=True)
class FileGroup:
    """Files with the same kind of access. `open`: the group is expanded when the page loads."""

    title: str
    note: str
    files: list[Item]
    open: bool


@dataclass(frozen=True)
class Meter:
    """Use of a resource beside its limit. `share` is out of METER_WIDTH; None without a limit or a measurement."""

    label: str
    value: str
    limit: str
    share: int | None

    @property
    def level(self) -> str:
        return "full" if self.share is not None and self.share >= 0.9 * METER_WIDTH else "fine"


@dataclass(frozen=True)
class RunPresenter:
    """Values that the template needs of a payload.

    Attributes:
        payload: The payload.
        requested_trace: The level of trace in force for the job, or None if the job was deleted.
    """

    payload: Item
    requested_trace: str | None = None

    @property
    def metadata(self) -> Item:
        return self.payload["metadata"]

    @property
    def command(self) -> str:
        return shlex.join(self.metadata["command"])

    @property
    def commit(self) -> str:
        return str(self.metadata["git_commit"])[:12]

    @property
    def seconds(self) -> float:
        begin, end = (datetime.fromisoformat(self.metadata[name]) for name in ("started_at", "finished_at"))
        return (end - begin).total_seconds()

    @property
    def outcome(self) -> str:
        """Describe the end of the command."""
        outcome, limit = self.payload["outcome"], self.metadata["sandbox"]["timeout_seconds"]
        sentences = {
            "exited": f"Exited with code {outcome['exit_code']}",
            "signaled": f"Killed by {outcome['signal'] or 'a signal'}",
            "timeout": f"Timed out after {format_seconds(limit)}",
            "exec_failed": "The command could not be started",
            "trace_incomplete": "Trace incomplete",
        }
        causes = {
            "out_of_memory": "out of memory",
            "disk_full": "disk limit exceeded",
            "stopped": "stopped by the worker",
            "worker_disk_full": "worker disk full",
            "too_many_processes": "process limit exceeded",
        }
        cause = causes.get(outcome.get("cause") or "")
        return f"{sentences[outcome['kind']]}, {cause}" if cause else sentences[outcome["kind"]]

    @property
    def outcome_level(self) -> str:
        outcome = self.payload["outcome"]
        return "fine" if outcome["kind"] == "exited" and outcome["exit_code"] == 0 else "failed"

    @property
    def trace_level(self) -> str:
        """The level of trace. Workers that name none record everything."""
        level: str = self.payload.get("trace", {}).get("level", JobTrace.FULL)
        return level

    @property
    def lacks_trace(self) -> bool:
        """Whether the worker recorded less than the job asks for."""
        levels = JobTrace.values
        return self.requested_trace is not None and levels.index(self.trace_level) < levels.index(self.requested_trace)

    @property
    def rules(self) -> list[RuleFindings]:
        """Findings grouped by rule, most severe first."""
        grouped: dict[str, list[Item]] = {}
        for item in self.payload["suspicious_activity"]["items"]:
            grouped.setdefault(item["rule"], []).append(item)
        rules = [RuleFindings(name, found[0]["severity"], found[0]["reason"], found) for name, found in grouped.items()]
        return sorted(rules, key=lambda rule: (SEVERITIES.index(rule.severity), rule.name))

    @property
    def severities(self) -> list[tuple[str, int]]:
        """Findings by severity, most severe first, without severities that do not occur."""
        items = self.payload["suspicious_activity"]["items"]
        counted = [(severity, sum(item["severity"] == severity for item in items)) for severity in SEVERITIES]
        return [(severity, count) for severity, count in counted if count]

    @property
    def worst(self) -> str:
        """The severity that colours the page; `none` without findings, `untraced` where nothing looked for them."""
        if self.severities:
            return self.severities[0][0]
        return "untraced" if self.trace_level == JobTrace.NONE else "none"

    @property
    def timeline(self) -> ProcessTimeline:
        return timeline(self.payload["processes"]["items"])

    @property
    def network(self) -> list[Item]:
        """Network attempts, the sandbox's own last.

        Each has `internal` (loopback and sockets of the sandbox without a finding), the error by name, and `via`, the
        address behind a name that was requested from the proxy.
        """
        suspicious = {finding["detail"] for finding in self.payload["suspicious_activity"]["items"]}
        attempts = [_attempt(item, suspicious) for item in self.payload["network_attempts"]["items"]]
        return sorted(attempts, key=lambda item: item["internal"])

    @property
    def file_groups(self) -> list[FileGroup]:
        """Files in the first group that matches. Empty groups are left out."""
        groups = {title: FileGroup(title, note, [], is_open) for title, note, is_open in _GROUPS}
        for item in self.payload["files"]["items"]:
            groups[_group_of(item)].files.append(item)
        return [group for group in groups.values() if group.files]

    @property
    def meters(self) -> list[Meter]:
        return list(_meters(self.payload, self.seconds)) if "resources" in self.payload else []


_CREDENTIALS, _OUTSIDE, _MODIFIED, _READ, _DENIED, _NOT_FOUND = (
    "Credentials and keys",
    "Outside the job's directories",
    "Modified",
    "Read",
    "Access denied",
    "Not found (ENOENT)",
)
_GROUPS = (
    (_CREDENTIALS, "accessed or attempted", True),
    (_OUTSIDE, "modified or attempted", True),
    (_MODIFIED, "in the checkout, home and temporary directories", False),
    (_READ, "read only", False),
    (_DENIED, "no access succeeded", False),
    (_NOT_FOUND, "no access succeeded", False),
)


def _group_of(item: Item) -> str:
    if item["sensitive"]:
        return _CREDENTIALS
    if item.get("outside"):
        return _OUTSIDE
    if set(item["ops"]) - {"read"}:
        return _MODIFIED
    if item["failed"] < item["count"]:
        return _READ
    return _DENIED if item["denied"] else _NOT_FOUND


def _attempt(item: Item, suspicious: set[str]) -> Item:
    kind, addr, name = item.get("kind", "contact"), item["addr"], item.get("name")
    is_own = item["family"] == "unix" or addr.startswith(("127.", "[::1]", "0.0.0.0:"))
    return {
        **item,
        "kind": kind,
        "internal": is_own and addr not in suspicious,
        "error": errno.errorcode.get(item.get("errno") or 0, ""),
        "via": addr if kind == "proxied" and name and not addr.startswith(name) else "",
    }


def _meters(payload: Item, seconds: float) -> Iterator[Meter]:
    peaks, limits = payload["resources"]["peaks"], payload["resources"]["limits"]
    yield _meter("Run time", seconds, limits["timeout_seconds"], format_seconds)
    yield _meter("Memory", peaks["memory_bytes"], limits["memory_bytes"], format_bytes)
    yield _meter("Processes", peaks["processes"], limits["processes"], str)
    yield _meter("Disk", peaks["disk_bytes"], limits["disk_bytes"], format_bytes)
    yield _meter("CPU time", peaks["cpu_seconds"], None, format_seconds)
    if output := payload["resources"].get("output"):
        yield _meter("Output", output["bytes"], limits["output_bytes"], format_bytes)
    if trace := payload.get("trace"):
        yield _meter("Trace", trace["bytes"], limits["trace_bytes"], format_bytes)


def _meter(label: str, value: Any, limit: Any, formatter: Any) -> Meter:
    if value is None:
        return Meter(label, "not measured", formatter(limit) if limit else "", None)
    share = min(METER_WIDTH, round(METER_WIDTH * value / limit)) if limit else None
    return Meter(label, formatter(value), formatter(limit) if limit else "", share)
