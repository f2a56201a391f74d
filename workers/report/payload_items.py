"""The items of the four lists of a run: processes, files, network attempts, findings, each in its fixed order."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from workers.engines.contract import NetworkRecord
from workers.report.aggregates import MAX_DETAIL, MAX_PATH, AddressAggregate, FileAggregate, FindingAggregate
from workers.report.formatting import clean, maybe_rfc3339, rfc3339
from workers.report.job_paths import JobPaths
from workers.report.processes import TracedProcess
from workers.report.rules.network import with_port
from workers.report.rules.registry import SEVERITIES

MAX_PROCESSES, MAX_FILES, MAX_ATTEMPTS, MAX_FINDINGS = 200, 500, 200, 100

_FAMILIES = ("inet", "inet6", "other", "unix")
_OPS = ("read", "write", "create", "delete", "rename", "metadata")
_VERDICTS = {"connected": "allowed", "failed": "unreachable", "denied": "refused"}
_MAX_ADDR = 256
_MAX_COMMAND = 256
_MAX_RULES = 10

Item = dict[str, Any]


def process_items(processes: list[TracedProcess], root: TracedProcess | None) -> list[Item]:
    """Root first, then those that broke a rule, as far as the cap goes; shown in the order of their first line."""
    chosen = sorted(processes, key=lambda one: (one is not root, not one.rules, one.first_seen, one.pid))
    chosen = chosen[:MAX_PROCESSES]
    chosen.sort(key=lambda one: (one is not root, one.first_seen, one.pid))
    return [_process(one, root) for one in chosen]


def _process(one: TracedProcess, root: TracedProcess | None) -> Item:
    parent = one.parent.leader if one.parent else None
    return {
        "pid": one.pid,
        "parent_pid": parent.pid if parent and one is not root else None,
        "is_root": one is root,
        "exec_count": one.exec_count,
        "exec_paths": [clean(path, MAX_PATH) for path in one.exec_paths],
        "command": clean(" ".join(one.command.split()), _MAX_COMMAND),
        "first_seen": rfc3339(one.first_seen),
        "ended_at": maybe_rfc3339(one.ended_at),
        "exit_code": one.exit_code,
        "signal": one.signal,
        "rules": sorted(one.rules)[:_MAX_RULES],
    }


def file_items(tallies: Iterable[FileAggregate], ground: JobPaths) -> list[Item]:
    """Sorted as they are shown, so that the order does not depend on where a worker keeps its checkouts."""
    ordered = sorted(((tally.rank, ground.shown(tally.path), tally) for tally in tallies), key=lambda one: one[:2])
    return [
        {
            "path": clean(shown, MAX_PATH),
            "ops": [op for op in _OPS if op in tally.ops],
            "count": tally.count,
            "failed": tally.failed,
            "denied": tally.denied,
            "sensitive": tally.sensitive,
            "outside": tally.outside,
        }
        for _, shown, tally in ordered
    ]


def network_items(tallies: Iterable[AddressAggregate], records: Iterable[NetworkRecord]) -> list[Item]:
    """What the trace saw and what the egress proxy saw, in one list."""
    items = [_asked(tally) if tally.name else _contacted(tally) for tally in tallies]
    items += _proxied(records)
    items.sort(key=lambda item: (_FAMILIES.index(item["family"]), item["addr"], item["kind"], item["verdict"] or ""))
    return items


def _asked(tally: AddressAggregate) -> Item:
    """No resolver answers inside a sandbox: a name that was looked up led nowhere."""
    name = clean(tally.name, _MAX_ADDR)
    return _attempt("lookup", name, "other", tally.count, name=name, verdict="unreachable")


def _contacted(tally: AddressAggregate) -> Item:
    number = getattr(errno, tally.errno or "", None)
    addr = clean(with_port(tally.host, tally.port), _MAX_ADDR)
    verdict = _VERDICTS.get(tally.outcome or "")
    details = {"port": tally.port, "outcome": tally.outcome, "errno": number, "verdict": verdict}
    return _attempt("contact", addr, tally.family, tally.count, **details)


def _proxied(records: Iterable[NetworkRecord]) -> list[Item]:
    """One item for each host, port and verdict; bytes added up."""
    merged: dict[tuple[str, int, str], Item] = {}
    for record in records:
        item = merged.setdefault((record.name, record.port, record.verdict), _from_proxy(record))
        item["count"] += 1
        item["bytes_sent"] += record.bytes_sent
        item["bytes_received"] += record.bytes_received
    return list(merged.values())


def _from_proxy(record: NetworkRecord) -> Item:
    addr = clean(with_port(record.address or record.name, record.port), _MAX_ADDR)
    outcome = {"allowed": "connected", "refused": "denied"}.get(record.verdict, "failed")
    details = {
        "port": record.port,
        "name": clean(record.name, _MAX_ADDR),
        "outcome": outcome,
        "verdict": record.verdict,
    }
    return _attempt("proxied", addr, _family(record.address), 0, **details, bytes_sent=0, bytes_received=0)


def _family(address: str | None) -> str:
    try:
        return "inet6" if ipaddress.ip_address(address or "").version == 6 else "inet"
    except ValueError:
        return "other"


def _attempt(kind: str, addr: str, family: str, count: int, **details: Any) -> Item:
    nothing = dict.fromkeys(("port", "name", "outcome", "errno", "verdict", "bytes_sent", "bytes_received"))
    return {"kind": kind, "addr": addr, "family": family, "count": count, **nothing, **details}


def finding_items(by_rule: dict[str, list[FindingAggregate]]) -> list[Item]:
    """As many as the cap allows, by turns from each rule, so that every rule that fired is seen; worst first."""
    turns = zip_longest(*(by_rule[name] for name in sorted(by_rule)))
    chosen = [finding for turn in turns for finding in turn if finding is not None][:MAX_FINDINGS]
    chosen.sort(key=_severity_rank)
    return [
        {
            "rule": finding.rule.name,
            "severity": finding.rule.severity,
            "reason": finding.rule.reason,
            "detail": clean(finding.detail, MAX_DETAIL),
            "count": finding.count,
        }
        for finding in chosen
    ]


def _severity_rank(finding: FindingAggregate) -> tuple[int, str, str]:
    return SEVERITIES.index(finding.rule.severity), finding.rule.name, finding.detail
