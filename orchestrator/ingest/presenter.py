"""A run as its page shows it: findings first, then what happened, in people's words. Pure: payload in, values out."""

import errno
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.ingest.formatting import bytes_in_words, seconds_in_words
from orchestrator.ingest.serializers import SEVERITIES
from orchestrator.ingest.timeline import ProcessTimeline, timeline

METER = 1000  # units of a full meter
Item = dict[str, Any]


@dataclass(frozen=True)
class RuleBroken:
    """All findings of one rule. `more`: how many details are not shown."""

    name: str
    severity: str
    reason: str
    findings: list[Item]

    @property
    def times(self) -> int:
        return sum(item["count"] for item in self.findings)


@dataclass(frozen=True)
class FileGroup:
    title: str
    note: str
    files: list[Item]
    open: bool


@dataclass(frozen=True)
class Meter:
    """A peak beside its limit. `share` is out of METER; None: no limit, or not measured."""

    label: str
    value: str
    limit: str
    share: int | None

    @property
    def mood(self) -> str:
        return "full" if self.share is not None and self.share >= 0.9 * METER else "fine"


@dataclass(frozen=True)
class RunPresenter:
    """Everything that the template needs of a payload."""

    payload: Item

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
        """How it ended, as a sentence without its stop."""
        outcome, limit = self.payload["outcome"], self.metadata["sandbox"]["timeout_seconds"]
        sentences = {
            "exited": f"Exited with code {outcome['exit_code']}",
            "signaled": f"Killed by {outcome['signal'] or 'a signal'}",
            "timeout": f"Stopped at its timeout of {seconds_in_words(limit)}",
            "exec_failed": "The command could not be started",
            "trace_incomplete": "The trace ends before the command did",
        }
        causes = {"out_of_memory": "ran out of memory", "disk_full": "filled its disk", "stopped": "was stopped"}
        causes["worker_disk_full"] = "the worker's disk ran low"
        causes["too_many_processes"] = "started too many processes"
        cause = causes.get(outcome.get("cause") or "")
        return f"{sentences[outcome['kind']]}, {cause}" if cause else sentences[outcome["kind"]]

    @property
    def outcome_mood(self) -> str:
        outcome = self.payload["outcome"]
        return "fine" if outcome["kind"] == "exited" and outcome["exit_code"] == 0 else "failed"

    @property
    def rules(self) -> list[RuleBroken]:
        """Worst first."""
        grouped: dict[str, list[Item]] = {}
        for item in self.payload["suspicious_activity"]["items"]:
            grouped.setdefault(item["rule"], []).append(item)
        broken = [RuleBroken(name, found[0]["severity"], found[0]["reason"], found) for name, found in grouped.items()]
        return sorted(broken, key=lambda rule: (SEVERITIES.index(rule.severity), rule.name))

    @property
    def severities(self) -> list[tuple[str, int]]:
        """How many rules of each severity were broken, worst first, none left out that is not zero."""
        rules = self.rules
        counted = [(severity, sum(rule.severity == severity for rule in rules)) for severity in SEVERITIES]
        return [(severity, count) for severity, count in counted if count]

    @property
    def worst(self) -> str:
        """The severity that colours the page; `none` if no rule was broken."""
        return self.severities[0][0] if self.severities else "none"

    @property
    def timeline(self) -> ProcessTimeline:
        return timeline(self.payload["processes"]["items"])

    @property
    def network(self) -> list[Item]:
        """Attempts with `quiet` (the sandbox's own loopback and sockets, unless a rule objects), the error by name, and
        for a name that the proxy was asked for the address behind it (`via`). The quiet ones last."""
        objected = {finding["detail"] for finding in self.payload["suspicious_activity"]["items"]}
        shown = [_attempt(item, objected) for item in self.payload["network_attempts"]["items"]]
        return sorted(shown, key=lambda item: item["quiet"])

    @property
    def file_groups(self) -> list[FileGroup]:
        """Each file in the first group that fits; empty groups are left out."""
        groups = {title: FileGroup(title, note, [], is_open) for title, note, is_open in _GROUPS}
        for item in self.payload["files"]["items"]:
            groups[_group_of(item)].files.append(item)
        return [group for group in groups.values() if group.files]

    @property
    def meters(self) -> list[Meter]:
        return list(_meters(self.payload, self.seconds)) if "resources" in self.payload else []


_CREDENTIALS, _OUTSIDE, _CHANGED, _READ, _MISSED = (
    "Credentials and keys",
    "Outside its own directories",
    "Written, created or deleted",
    "Read",
    "Looked for in vain",
)
_GROUPS = (
    (_CREDENTIALS, "read, or tried", True),
    (_OUTSIDE, "changed, or tried", True),
    (_CHANGED, "in its checkout, its home and its temporary directories", False),
    (_READ, "and nothing else", False),
    (_MISSED, "never there to be read", False),
)


def _group_of(item: Item) -> str:
    if item["sensitive"]:
        return _CREDENTIALS
    if item.get("outside"):
        return _OUTSIDE
    if set(item["ops"]) - {"read"}:
        return _CHANGED
    return _READ if item["failed"] < item["count"] else _MISSED


def _attempt(item: Item, objected: set[str]) -> Item:
    kind, addr, name = item.get("kind", "contact"), item["addr"], item.get("name")
    is_own = item["family"] == "unix" or addr.startswith(("127.", "[::1]", "0.0.0.0:"))
    return {
        **item,
        "kind": kind,
        "quiet": is_own and addr not in objected,
        "error": errno.errorcode.get(item.get("errno") or 0, ""),
        "via": addr if kind == "proxied" and name and not addr.startswith(name) else "",
    }


def _meters(payload: Item, seconds: float) -> Iterator[Meter]:
    peaks, limits = payload["resources"]["peaks"], payload["resources"]["limits"]
    yield _meter("Time", seconds, limits["timeout_seconds"], seconds_in_words)
    yield _meter("Memory", peaks["memory_bytes"], limits["memory_bytes"], bytes_in_words)
    yield _meter("Processes at once", peaks["processes"], limits["processes"], str)
    yield _meter("Disk", peaks["disk_bytes"], limits["disk_bytes"], bytes_in_words)
    yield _meter("CPU", peaks["cpu_seconds"], None, seconds_in_words)
    if output := payload["resources"].get("output"):
        yield _meter("Output", output["bytes"], limits["output_bytes"], bytes_in_words)
    if trace := payload.get("trace"):
        yield _meter("Trace", trace["bytes"], limits["trace_bytes"], bytes_in_words)


def _meter(label: str, value: Any, limit: Any, words: Any) -> Meter:
    if value is None:
        return Meter(label, "not measured", words(limit) if limit else "", None)
    share = min(METER, round(METER * value / limit)) if limit else None
    return Meter(label, words(value), words(limit) if limit else "", share)
