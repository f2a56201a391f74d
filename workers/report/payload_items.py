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
    """Return the root, then processes with findings, up to the cap, in the order of their first line."""
    chosen = sorted(
        processes, key=lambda process: (process is not root, not process.rules, process.first_seen, process.pid)
    )
    chosen = chosen[:MAX_PROCESSES]
    chosen.sort(key=lambda process: (process is not root, process.first_seen, process.pid))
    return [_process(process, root) for process in chosen]


def _process(process: TracedProcess, root: TracedProcess | None) -> Item:
    parent = process.parent.leader if process.parent else None
    return {
        "pid": process.pid,
        "parent_pid": parent.pid if parent and process is not root else None,
        "is_root": process is root,
        "exec_count": process.exec_count,
        "exec_paths": [clean(path, MAX_PATH) for path in process.exec_paths],
        "command": clean(" ".join(process.command.split()), _MAX_COMMAND),
        "first_seen": rfc3339(process.first_seen),
        "ended_at": maybe_rfc3339(process.ended_at),
        "exit_code": process.exit_code,
        "signal": process.signal,
        "rules": sorted(process.rules)[:_MAX_RULES],
    }


def file_items(aggregates: Iterable[FileAggregate], paths: JobPaths) -> list[Item]:
    """Return the files in the order of their short form, which does not depend on the worker."""
    ordered = sorted(
        ((aggregate.rank, paths.shown(aggregate.path), aggregate) for aggregate in aggregates),
        key=lambda item: item[:2],
    )
    return [
        {
            "path": clean(shown, MAX_PATH),
            "ops": [op for op in _OPS if op in aggregate.ops],
            "count": aggregate.count,
            "failed": aggregate.failed,
            "denied": aggregate.denied,
            "sensitive": aggregate.sensitive,
            "outside": aggregate.outside,
        }
        for _, shown, aggregate in ordered
    ]


def network_items(aggregates: Iterable[AddressAggregate], records: Iterable[NetworkRecord]) -> list[Item]:
    """Return the network attempts of the trace and of the egress proxy in one list."""
    items = [_lookup_item(aggregate) if aggregate.name else _contact_item(aggregate) for aggregate in aggregates]
    items += _proxied_items(records)
    items.sort(key=lambda item: (_FAMILIES.index(item["family"]), item["addr"], item["kind"], item["verdict"] or ""))
    return items


def _lookup_item(aggregate: AddressAggregate) -> Item:
    """Return a lookup as unreachable: no resolver answers inside a sandbox."""
    name = clean(aggregate.name, _MAX_ADDR)
    return _attempt("lookup", name, "other", aggregate.count, name=name, verdict="unreachable")


def _contact_item(aggregate: AddressAggregate) -> Item:
    number = getattr(errno, aggregate.errno or "", None)
    addr = clean(with_port(aggregate.host, aggregate.port), _MAX_ADDR)
    verdict = _VERDICTS.get(aggregate.outcome or "")
    details = {"port": aggregate.port, "outcome": aggregate.outcome, "errno": number, "verdict": verdict}
    return _attempt("contact", addr, aggregate.family, aggregate.count, **details)


def _proxied_items(records: Iterable[NetworkRecord]) -> list[Item]:
    """Return one item for each host, port and verdict, with the sum of the bytes."""
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
    """Return findings up to the cap, in turns from each rule, so that every rule is represented; most severe first."""
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
