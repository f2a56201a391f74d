"""The run report: fed with the trace while the job runs, it yields the `run.v1` payload for ingest at the end.

    report = RunReport(engine.places(order), expected=order.egress.allow if order.egress else ())
    ended = engine.run(order, trace=report.feed, ...)
    body = encoded(report.payload(metadata=metadata, ended=ended, order=order))

`body` is what to send, and to send again: its bytes are canonical. Memory is bounded whatever the trace holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from workers.engines.contract import MountPoints, RunResult, RunSpec
from workers.engines.tracing.strace import Event, StraceReader, TracedCall
from workers.report.aggregates import AddressAggregates, FileAggregates, FindingAggregates
from workers.report.event_extractor import EventExtractor
from workers.report.events import DENIED, ContactEvent, DeathEvent, FileUse, LookupEvent, Proxied, TraceCut, TraceEvent
from workers.report.formatting import rfc3339
from workers.report.job_paths import JobPaths
from workers.report.outcome import outcome_of
from workers.report.payload import encoded, fitted, identified, resources
from workers.report.payload_items import Item, file_items, finding_items, network_items, process_items
from workers.report.processes import TracedProcess
from workers.report.rules.context import RuleContext
from workers.report.rules.registry import evaluate_rules

__all__ = ["RunReport", "encoded"]

_MAX_NAMES = 512  # different system calls; there are fewer
_BAD_SYSCALL = 128 + 31  # as an exit code: killed by SIGSYS
_OUTSIDE = frozenset({"write_outside", "kernel_write"})


class RunReport:
    """One job's run. `expected`: hosts that the job may speak to without being suspicious, as in `Egress.allow`."""

    def __init__(self, mount_points: MountPoints, *, expected: Sequence[str] = ()) -> None:
        self._ground = JobPaths(mount_points)
        self._expected = tuple(expected)
        self._reader = StraceReader()
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._observer = EventExtractor(self._ground)
        self._files, self._addresses, self._findings = FileAggregates(), AddressAggregates(), FindingAggregates()
        self._calls = self._denied = 0
        self._names: set[str] = set()
        self._nobody = TracedProcess(0, 0.0, mount_points.workspace)

    def feed(self, data: bytes) -> None:
        """Take some of the trace, cut anywhere. Never raises for what is in it."""
        self._digest.update(data)
        self._bytes += len(data)
        for event in self._reader.feed(data):
            self._take(event)

    def payload(self, *, metadata: Mapping[str, Any], result: RunResult, spec: RunSpec) -> dict[str, Any]:
        """The body for ingest, once, after the run. `metadata`: what identifies the job (`org_slug`, `project_slug`,
        `repo_url`, `git_commit`, `command`, `trigger_kind`, `worker_id`, `job_id`) and what else is known of it
        (`git_ref`, `pull_request_number`, `working_directory`, `trigger_actor`, `retry_of_job_id`); never a secret.
        """
        for event in self._reader.finish():
            self._take(event)
        self._hear(result)
        return fitted(self._body(metadata, result, spec), self._lists(result))

    def _hear(self, result: RunResult) -> None:
        """What the engine knows and the trace may not."""
        root = self._observer.processes.root or self._nobody
        for record in result.network:
            self._judge(Proxied(record.name, record.port, record.verdict), self._nobody)
        if result.trace_truncated:
            self._judge(TraceCut(result.trace_bytes), self._nobody)
        if not root.signal and (result.signal == "SIGSYS" or result.exit_code == _BAD_SYSCALL):
            self._judge(DeathEvent("SIGSYS"), root)

    def _take(self, event: Event) -> None:
        if isinstance(event, TracedCall):
            self._calls += 1
            self._denied += event.errno in DENIED
            if len(self._names) < _MAX_NAMES:
                self._names.add(event.name)
        for fact, process in self._observer.facts(event):
            self._count(fact, self._judge(fact, process))

    def _judge(self, fact: TraceEvent, process: TracedProcess) -> set[str]:
        """The names of the rules that object."""
        fired = set()
        for rule, detail in evaluate_rules(RuleContext(fact, process, self._ground, self._expected)):
            self._findings.add(rule, detail)
            fired.add(rule.name)
        process.rules |= fired
        return fired

    def _count(self, fact: TraceEvent, fired: set[str]) -> None:
        match fact:
            case FileUse():
                self._files.add(fact, sensitive="credential_read" in fired, outside=bool(fired & _OUTSIDE))
            case ContactEvent():
                self._addresses.contacted(fact)
            case LookupEvent():
                self._addresses.looked_up(fact)

    def _body(self, metadata: Mapping[str, Any], result: RunResult, spec: RunSpec) -> Item:
        started, finished = rfc3339(result.started_at), rfc3339(max(result.started_at, result.finished_at))
        return {
            "schema_version": "run.v1",
            "metadata": identified(metadata, result, spec, started=started, finished=finished),
            "outcome": outcome_of(result, self._observer.processes.root),
            "summary": self._summary(result, finished),
            "counts": self._counts(result),
            "resources": resources(result, spec),
            # Another thread can change a path after it was read: the trace is evidence, not proof.
            "trace": {
                "sha256": self._digest.hexdigest(),
                "bytes": max(result.trace_bytes, self._bytes),
                "truncated": result.trace_truncated,
                "confidence": "advisory",
            },
        }

    def _summary(self, result: RunResult, finished: str) -> Item:
        """Of the calls that are traced, which is not every call that was made."""
        return {
            "timestamp": finished,
            "total_syscalls": self._calls,
            "unique_syscalls": len(self._names),
            "denied_count": self._denied,
            "process_count": self._observer.processes.total,
            "duration_ms": max(0, round((result.finished_at - result.started_at) * 1000)),
            "exit_code": result.exit_code if result.exit_code is not None else -1,
        }

    def _counts(self, result: RunResult) -> Item:
        return {
            "processes": self._observer.processes.total,
            "files_accessed": self._files.total,
            "network_attempts": self._addresses.total + len(network_items((), result.network)),
            "suspicious_activity": self._findings.total,
            "trace_lines": self._reader.lines,
            "bad_lines": self._reader.bad_lines,
        }

    def _lists(self, result: RunResult) -> dict[str, tuple[list[Item], int]]:
        processes, counts = self._observer.processes, self._counts(result)
        network = network_items(self._addresses.kept(), result.network)
        return {
            "processes": (process_items(processes.settled(), processes.root), counts["processes"]),
            "files": (file_items(self._files.kept(), self._ground), counts["files_accessed"]),
            "network_attempts": (network, counts["network_attempts"]),
            "suspicious_activity": (finding_items(self._findings.by_rule()), counts["suspicious_activity"]),
        }
