"""Prints the figures as a table: ours, the peers' from the same run, and the aim.

`python -m benchmarks.table results.json` prints it as markdown, and below it where the time went.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MISSING = "-"
LINES = 16


@dataclass(frozen=True)
class Row:
    """`aim` in words, `met` by what was measured; None where there is no aim or no figure."""

    figure: str
    value: str
    aim: str = ""
    met: bool | None = None


def rows(found: dict[str, Any]) -> Iterator[Row]:
    """All that has been measured, what is missing too."""
    yield from _lifecycles(found)
    yield from _peers(found.get("peers") or {})
    yield from _claims(found)
    yield from _scheduling(found)
    yield from _waiting(found)


def _lifecycles(found: dict[str, Any]) -> Iterator[Row]:
    for layout, told in (found.get("layouts") or {}).items():
        each = told.get("processor_ms") or {}
        spent = (
            f" ({number(each.get('server'))} ms of a core each in the server, {number(each.get('PostgreSQL'))} in SQL)"
        )
        yield Row(f"lifecycles/s, single calls, {layout}", number(told["rate"]) + (spent if each else ""))
    yield Row("lifecycles/s, batch calls", number(found.get("bulk_lifecycles_per_s")))
    yield _aimed(found, "lifecycles_vs_prefect", "single calls ÷ Prefect", "≥ 10", lambda value: value >= 10)
    yield _aimed(found, "bulk_vs_procrastinate", "batch calls ÷ procrastinate", "≥ 3", lambda value: value >= 3)


def _peers(peers: dict[str, Any]) -> Iterator[Row]:
    shown = (
        ("prefect", "lifecycles_per_s", "Prefect, over HTTP, flow runs/s"),
        ("prefect", "submits_per_s", "Prefect, over HTTP, only created/s"),
        ("procrastinate", "jobs_per_s", "procrastinate, in process, deferred singly, jobs/s"),
        ("procrastinate", "bulk_jobs_per_s", "procrastinate, in process, deferred in batches, jobs/s"),
        ("pgqueuer", "bulk_jobs_per_s", "pgqueuer, in process, enqueued in batches, jobs/s"),
        ("celery", "jobs_per_s", "Celery, Redis that syncs each write, jobs/s"),
    )
    for peer, figure, name in shown:
        told = peers.get(peer) or {}
        yield Row(name, number(told.get(figure)) + (f" ({told['missing']})" if "missing" in told else ""))


def _claims(found: dict[str, Any]) -> Iterator[Row]:
    yield Row("claims/s over HTTP, one job a call", number(found.get("claims_per_s")))
    yield Row("claims/s over HTTP, up to 64 jobs a call", number(found.get("bulk_claims_per_s")))
    yield Row("claims/s, the same SQL from pgbench", number(found.get("pgbench_claims_per_s")))
    yield _aimed(found, "claims_vs_pgbench", "one job a call ÷ pgbench", "≥ 0.5", lambda value: value >= 0.5)
    yield _aimed(found, "bulk_claims_vs_pgbench", "several jobs a call ÷ pgbench", "≥ 2", lambda value: value >= 2)


def _scheduling(found: dict[str, Any]) -> Iterator[Row]:
    points = found.get("flatness") or {}
    for name, words in (
        ("flat_jobs", "a claim, {size:,} jobs waiting ÷ 1,000"),
        ("flat_lanes", "a claim, {size:,} lanes ÷ one"),
        ("blocked_ahead", "a claim, {size:,} blocked jobs ahead ÷ none"),
    ):
        size = points[name][-1]["size"] if points.get(name) else 0
        yield _aimed(found, name, words.format(size=size), "≤ 1.2", lambda value: value <= 1.2)
    pages = found.get("lists") or {}
    jobs = f"{pages.get('jobs', 0):,} jobs"
    yield _aimed(pages, "api_ms", f"the API's first page of {jobs}, ms", "< 50", lambda value: value < 50)
    yield _aimed(pages, "admin_ms", f"the admin's first page of {jobs}, ms", "< 200", lambda value: value < 200)
    limits, fairness, killed = (found.get(name) or {} for name in ("limits", "fairness", "killed"))
    claims = f"limits exceeded, 64 workers, {limits.get('claims', 0):,} claims"
    yield _aimed(found, "limits_exceeded", claims, "0", lambda value: value == 0)
    asked, room = (limits.get("calls") or {}).get("claim") or {}, limits.get("room") or {}
    answered = (
        f"a tenant with free slots and jobs went without a claim, p99, ms (responses took {number(asked.get('p99'))})"
    )
    yield Row(answered, number((room.get("waits") or {}).get("p99")))
    empty = f"of {room.get('empty', 0):,} claims that found nothing, those with a job there that no other claim took"
    yield _aimed(room, "missed", empty, "0", lambda value: value == 0)
    yield from _fairness(fairness)
    yield _aimed(killed, "lost", "lost jobs after kill -9 of the server under load", "0", lambda value: value == 0)
    yield _aimed(found, "deadlocks", "deadlocks in the whole run", "0", lambda value: value == 0)
    audit = found.get("audit")
    yield Row("audit", MISSING if audit is None else json.dumps(audit), "[]", None if audit is None else audit == [])


def _fairness(fairness: dict[str, Any]) -> Iterator[Row]:
    for policy in ("fair", "fifo"):
        told = fairness.get(policy) or {}
        crowd = f"{policy}: nine small tenants beside one with {fairness.get('crowd', 0):,} jobs"
        if policy == "fair":
            yield _aimed(
                fairness, "fair_seconds_vs_alone", f"{crowd}, their time ÷ alone", "≤ 1.1", lambda value: value <= 1.1
            )
        place = number(told["place"]) if told.get("place") else f"not within {number(told.get('claims'))}"
        yield Row(f"{crowd}, position of their last claim (90 alone)", place if told else MISSING)


def _waiting(found: dict[str, Any]) -> Iterator[Row]:
    latency = found.get("latency_ms") or {}
    yield _aimed(latency, "p50", "submit → lease of a waiting worker, p50, ms", "< 10", lambda value: value < 10)
    yield _aimed(latency, "p99", "submit → lease of a waiting worker, p99, ms", "< 30", lambda value: value < 30)
    submit = found.get("submit_ms") or {}
    yield Row("the response to the submit in that, p50, ms", number(submit.get("p50")))
    idle = found.get("idle_polls") or {}
    polls = f"{idle.get('waiters', 0):,} idle long polls on one process"
    yield Row(f"{polls}, MB (alone {number(idle.get('rss_mb_alone'))})", number(idle.get("rss_mb")))
    yield Row(f"{polls}, database connections", number(idle.get("connections")))
    yield Row(f"{polls}, % of a core", number(idle.get("cpu_percent")))


def _aimed(found: dict[str, Any], name: str, words: str, aim: str, is_met: Callable[[float], bool]) -> Row:
    value = found.get(name)
    return Row(words, number(value), aim, None if value is None else is_met(value))


def number(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}".rstrip("0")


def verdict(row: Row) -> str:
    return {True: "yes", False: "no", None: ""}[row.met]


def markdown(found: dict[str, Any]) -> str:
    machine = found.get("machine") or {}
    fsync = (machine.get("settings") or {}).get("fsync")
    parts = [
        f"{found.get('form')} form, {found.get('at')}",
        f"{machine.get('cores')} cores of {machine.get('processor')}, {machine.get('memory_gib')} GiB",
        f"Linux {machine.get('kernel')}, Python {machine.get('python')}, PostgreSQL {machine.get('postgresql')}",
        f"fsync {fsync}, a commit takes {machine.get('commit_ms')} ms, load before {machine.get('load_before')}",
    ]
    head = [
        f"{'; '.join(parts)}.",
        "",
        "| figure | measured | aim | met |",
        "| --- | ---: | --- | --- |",
    ]
    return "\n".join([*head, *(f"| {row.figure} | {row.value} | {row.aim} | {verdict(row)} |" for row in rows(found))])


FLOWS = {"claims": "claims of one job", "lifecycles": "lifecycles", "many": "lifecycles, batch calls"}


def profile(found: dict[str, Any]) -> str:
    """Return the profile as markdown, a column for each flow; an empty string without a profile."""
    seen = found.get("profiles")
    if not seen:
        return ""
    columns = [dict(_shares(told)) for told in seen.values()]
    names = sorted({name: None for column in columns for name in column}, key=_kind)
    head = ["where", *(f"{FLOWS[flow]}, {number(told['per_s'])}/s" for flow, told in seen.items())]
    lines = [["---", *("---:" for _ in columns)], *([name, *(it.get(name, "") for it in columns)] for name in names)]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in [head, *lines])])


def _shares(seen: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in seen["processors"].items():
        yield f"processors in use: {name}", number(value)
    for name, value in seen["owners"].items():
        yield f"server's Python: {name}", f"{value:.0%}"
    for name, value in list(seen["within"].items())[:LINES]:
        yield f"… within `{name}`", f"{value:.0%}"
    for name, took in seen["functions"].items():
        yield f"SQL function `{name}`, ms a call", str(took["each_ms"])


def _kind(name: str) -> int:
    return next(place for place, kind in enumerate(("processors", "server's", "…", "SQL")) if name.startswith(kind))


if __name__ == "__main__":
    result = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write(f"{markdown(result)}\n{profile(result)}\n")
