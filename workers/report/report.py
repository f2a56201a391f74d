"""The run report: takes the trace while the job runs, and returns the `run.v1` payload for ingest at the end.

    report = RunReport(engine.mount_points(spec), expected=spec.egress.allow if spec.egress else ())
    result = engine.run(spec, trace=report.feed, ...)
    body = encoded(report.payload(metadata=metadata, result=result, spec=spec))

`body` has canonical bytes: send the same ones again. Memory is bounded, whatever the trace holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from workers.engines.contract import MountPoints, RunResult, RunSpec
from workers.engines.tracing.strace import Event, StraceReader, TracedCall, split_line
from workers.report.aggregates import AddressAggregates, FileAggregate, FileAggregates, FindingAggregates
from workers.report.event_extractor import EventExtractor
from workers.report.events import (
    DENIED,
    ContactEvent,
    DeathEvent,
    FileEvent,
    LookupEvent,
    ProxyEvent,
    TraceCutEvent,
    TraceEvent,
)
from workers.report.formatting import rfc3339
from workers.report.job_paths import JobPaths
from workers.report.payload import encoded, fitted, identified, outcome_of, resources
from workers.report.payload_items import Item, file_items, finding_items, network_items, process_items
from workers.report.processes import TracedProcess
from workers.report.repeated_calls import CALL, Findings, RepeatedCall, RepeatedCalls
from workers.report.rules.context import RuleContext
from workers.report.rules.registry import evaluate_rules
from workers.report.syscalls.files import named_directory

__all__ = ["RunReport", "encoded"]

_MAX_NAMES = 512  # different system calls; there are fewer
_BAD_SYSCALL = 128 + 31  # as an exit code: killed by SIGSYS
_OUTSIDE = frozenset({"write_outside", "kernel_write"})


class RunReport:
    """The report of one run. `expected`: hosts that are not suspicious, as in `EgressPolicy.allow`."""

    def __init__(self, mount_points: MountPoints, *, expected: Sequence[str] = ()) -> None:
        self._paths = JobPaths(mount_points)
        self._expected = tuple(expected)
        self._reader = StraceReader()
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._extractor = EventExtractor(self._paths)
        self._files, self._addresses, self._findings = FileAggregates(), AddressAggregates(), FindingAggregates()
        self._repeated = RepeatedCalls()
        self._calls = self._denied = 0
        self._names: set[str] = set()
        self._no_process = TracedProcess(0, 0.0, mount_points.workspace)

    def feed(self, data: bytes) -> None:
        """Take some of the trace, cut anywhere. Never raises for its content."""
        self._digest.update(data)
        self._bytes += len(data)
        for line, cut in self._reader.split(data):
            if cut or not self._is_repeated(line):
                for event in self._reader.read(line, cut=cut):
                    self._on_event(event)

    def _is_repeated(self, line: bytes) -> bool:
        """Count a line whose meaning is known, or read it and remember what it means. False: it must be read."""
        parts = split_line(line)
        if parts is None or not parts[2].startswith(CALL):
            return False
        pid, _, text = parts
        process = self._extractor.processes.known(pid)
        if process is None:
            return False
        leader = process.leader
        known = self._repeated.find(leader.program, text)
        if known is None:
            for event in self._reader.read(line, cut=False):
                self._on_event(event, remembered_as=text)
            return True
        self._reader.skip()
        self._calls += 1
        self._denied += known.is_denied
        leader.cwd = known.directory
        if known.event is not None:
            if known.findings:
                self._add_findings(known.findings, process)
            if known.aggregate is None or not self._files.repeat(known.aggregate, known.event):
                self._aggregate(known.event, known.findings)
        return True

    def payload(self, *, metadata: Mapping[str, Any], result: RunResult, spec: RunSpec) -> dict[str, Any]:
        """Return the body for ingest. Call it once, after the run.

        Args:
            metadata: The identity of the job (`org_slug`, `project_slug`, `repo_url`, `git_commit`, `command`,
                `trigger_kind`, `worker_id`, `job_id`) and what else is known of it (`git_ref`, `pull_request_number`,
                `working_directory`, `trigger_actor`, `retry_of_job_id`); never a secret.
            result: The result of the engine.
            spec: The spec of the run.
        """
        for event in self._reader.finish():
            self._on_event(event)
        self._add_engine_events(result)
        return fitted(self._body(metadata, result, spec), self._lists(result))

    def _add_engine_events(self, result: RunResult) -> None:
        """Add what the engine knows and the trace may not show."""
        root = self._extractor.processes.root or self._no_process
        for record in result.network:
            self._evaluate(ProxyEvent(record.name, record.port, record.verdict), self._no_process)
        if result.trace_truncated:
            self._evaluate(TraceCutEvent(result.trace_bytes), self._no_process)
        if not root.signal and (result.signal == "SIGSYS" or result.exit_code == _BAD_SYSCALL):
            self._evaluate(DeathEvent("SIGSYS"), root)

    def _on_event(self, event: Event, remembered_as: bytes | None = None) -> None:
        if isinstance(event, TracedCall):
            self._calls += 1
            self._denied += event.errno in DENIED
            if len(self._names) < _MAX_NAMES:
                self._names.add(event.name)
        meaning = None
        for trace_event, process in self._extractor.extract(event):
            findings = self._evaluate(trace_event, process)
            meaning = (trace_event, findings, self._aggregate(trace_event, findings))
        if remembered_as is not None and isinstance(event, TracedCall):
            self._remember(remembered_as, event, meaning)

    def _remember(
        self, text: bytes, call: TracedCall, meaning: tuple[TraceEvent, Findings, FileAggregate | None] | None
    ) -> None:
        directory = named_directory(call)
        if directory is None:
            return
        known = RepeatedCall(directory, call.errno in DENIED)
        if meaning is not None and isinstance(meaning[0], FileEvent):
            known = RepeatedCall(directory, call.errno in DENIED, meaning[0], *meaning[1:])
        program = self._extractor.processes.of(call.pid, call.time).leader.program
        self._repeated.remember(program, text, known)

    def _evaluate(self, trace_event: TraceEvent, process: TracedProcess) -> Findings:
        """Add and return the findings of an event."""
        findings = tuple(evaluate_rules(RuleContext(trace_event, process, self._paths, self._expected)))
        self._add_findings(findings, process)
        return findings

    def _add_findings(self, findings: Findings, process: TracedProcess) -> None:
        for rule, detail in findings:
            self._findings.add(rule, detail)
            process.rules.add(rule.name)

    def _aggregate(self, trace_event: TraceEvent, findings: Findings) -> FileAggregate | None:
        match trace_event:
            case FileEvent():
                fired = {rule.name for rule, _ in findings}
                return self._files.add(
                    trace_event, sensitive="credential_read" in fired, outside=bool(fired & _OUTSIDE)
                )
            case ContactEvent():
                self._addresses.contacted(trace_event)
            case LookupEvent():
                self._addresses.looked_up(trace_event)
        return None

    def _body(self, metadata: Mapping[str, Any], result: RunResult, spec: RunSpec) -> Item:
        started, finished = rfc3339(result.started_at), rfc3339(max(result.started_at, result.finished_at))
        return {
            "schema_version": "run.v1",
            "metadata": identified(metadata, result, spec, started=started, finished=finished),
            "outcome": outcome_of(result, self._extractor.processes.root),
            "summary": self._summary(result, finished),
            "counts": self._counts(result),
            "resources": resources(result, spec),
            # Another thread can change a path after it was read: the trace is evidence, not proof.
            "trace": {
                "level": str(spec.trace),
                "sha256": self._digest.hexdigest(),
                "bytes": max(result.trace_bytes, self._bytes),
                "truncated": result.trace_truncated,
                "confidence": "advisory",
            },
        }

    def _summary(self, result: RunResult, finished: str) -> Item:
        """Return the numbers of traced calls; not every call is traced."""
        return {
            "timestamp": finished,
            "total_syscalls": self._calls,
            "unique_syscalls": len(self._names),
            "denied_count": self._denied,
            "process_count": self._extractor.processes.total,
            "duration_ms": max(0, round((result.finished_at - result.started_at) * 1000)),
            "exit_code": result.exit_code if result.exit_code is not None else -1,
        }

    def _counts(self, result: RunResult) -> Item:
        return {
            "processes": self._extractor.processes.total,
            "files_accessed": self._files.total,
            "network_attempts": self._addresses.total + len(network_items((), result.network)),
            "suspicious_activity": self._findings.total,
            "trace_lines": self._reader.lines,
            "bad_lines": self._reader.bad_lines,
        }

    def _lists(self, result: RunResult) -> dict[str, tuple[list[Item], int]]:
        processes, counts = self._extractor.processes, self._counts(result)
        network = network_items(self._addresses.kept(), result.network)
        return {
            "processes": (process_items(processes.settled(), processes.root), counts["processes"]),
            "files": (file_items(self._files.kept(), self._paths), counts["files_accessed"]),
            "network_attempts": (network, counts["network_attempts"]),
            "suspicious_activity": (finding_items(self._findings.by_rule()), counts["suspicious_activity"]),
        }
