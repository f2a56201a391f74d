"""Prints the figures as a table: those with an aim first, then ours in detail and the peers' from the same run.

`python -m benchmarks.table results.json` prints it as markdown, with the profile below it.
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
PREFECT_AIMS = {"five": 11, "three": 18, "two": 21}


@dataclass(frozen=True)
class Row:
    """Holds a line of the table; `met` is None where there is no aim or no figure."""

    figure: str
    value: str
    aim: str = ""
    met: bool | None = None


def rows(found: dict[str, Any]) -> Iterator[Row]:
    """Return all figures that a run can have; one that was not measured is shown as missing."""
    yield from aims(found)
    yield from _lifecycles(found)
    yield from _peers(found.get("peers") or {})
    yield from _claims(found)
    yield from _costs(found)
    yield from _sandbox(found.get("sandbox") or {})
    yield from _scheduling(found)
    yield from _waiting(found)
    yield from _channels(found.get("channels") or {})


def aims(found: dict[str, Any]) -> Iterator[Row]:
    """Return the figures that the product promises, each with its aim."""
    yield from _lifecycle_aims(found)
    yield at_least(found, "claims_vs_minimal", "claims/s over HTTP ÷ minimal one-statement claim of pgbench", 0.2)
    yield at_least(found, "bulk_vs_procrastinate", "batch calls: lifecycles/s ÷ procrastinate, best setting", 5)
    minimal = "PostgreSQL CPU of a five-call lifecycle ÷ minimal lifecycle of four commits"
    yield at_most(found, "postgres_vs_minimal", minimal, 7)
    yield at_most(found, "heartbeat_vs_empty", "Python CPU of a heartbeat ÷ an empty answer of the same server", 5)
    yield at_most(found, "statements", "statements of a five-call lifecycle", 15)
    yield at_most(found, "trips", "round trips to PostgreSQL of a five-call lifecycle", 15)
    yield at_most(found, "wal_kb", "WAL of a five-call lifecycle, kB", 8.2)
    latency = found.get("latency_ms") or {}
    yield below(latency, "p50", "submit → lease of a waiting worker, idle system, p50, ms", 6)
    yield below(latency, "p99", "submit → lease of a waiting worker, idle system, p99, ms", 12)
    yield from _channel_aims(found)
    points = found.get("flatness") or {}
    for name, words in (
        ("flat_leases", "a claim, {size:,} leases of other workers ÷ none"),
        ("flat_jobs", "a claim, {size:,} jobs waiting ÷ 1,000"),
        ("flat_lanes", "a claim, {size:,} lanes ÷ one"),
        ("blocked_ahead", "a claim, {size:,} blocked jobs ahead ÷ none"),
    ):
        size = points[name][-1]["size"] if points.get(name) else 0
        yield at_most(found, name, words.format(size=size), 1.2)
    ended = ((found.get("open_snapshot") or {}).get("points") or [[0]])[-1][0]
    words = f"pages of a claim under a snapshot while {ended:,} jobs end ÷ after a vacuum"
    yield at_most(found, "open_snapshot_pages", words, 2)
    yield from _content_aims(found)
    yield from _actions_aims(found)
    yield from _event_aims(found)
    yield at_least(found, "webhooks_vs_bare", "deliveries/s to webhooks ÷ the same client without a database", 0.4)
    yield at_most(found, "dead_receiver", "latency of 49 webhooks beside one that is silent ÷ alone, p99", 1.2)
    yield at_most(found, "graphql_vs_rest", "fifty jobs by GraphQL ÷ by GET /api/jobs, ms", 2)
    jobs = (found.get("lists") or {}).get("jobs", 0)
    yield below(found, "dashboard_ms", f"the numbers of the dashboard among {jobs:,} jobs, ms", 50)
    slowest = found.get("api_jobs_slowest") or "the slowest"
    yield below(found, "api_jobs_ms", f"/api/jobs by type and status among {jobs:,} jobs, {slowest}, ms", 50)
    yield from _document_aims(found.get("document_004") or {})
    yield from _evidence_aims(found)
    cost = found.get("core_cost") or {}
    words = f"lifecycles/s ÷ those of {cost.get('baseline', 'the commit before evidence')}, in turns"
    yield at_least(cost, "ratio", words, 0.97)
    yield from _worker_aims(found)
    limits, killed = (found.get(name) or {} for name in ("limits", "killed"))
    yield at_most(found, "limits_exceeded", f"limits exceeded, 64 workers, {limits.get('claims', 0):,} claims", 0)
    yield at_most(killed, "lost", "lost jobs after kill -9 of the server under load", 0)
    yield at_most(found, "deadlocks", "deadlocks in the whole run", 0)
    audit = found.get("audit")
    yield Row("audit", MISSING if audit is None else json.dumps(audit), "[]", None if audit is None else audit == [])


def _content_aims(found: dict[str, Any]) -> Iterator[Row]:
    yield at_least(found, "pull_vs_registry", "MB/s of a pulled blob of 256 MiB ÷ docker-registry", 0.5)
    yield at_most(found, "image_memory", "memory of the server while 1 GiB of images goes in and out ÷ before", 1.3)
    yield at_least(found, "artifacts", "MB/s of an artifact of 1 GiB in and out ÷ a bare uvicorn application", 0.7)
    yield at_most(found, "artifacts_memory_mib", "MiB more memory of the server with 8 artifacts at once", 32)
    yield at_most(found, "artifacts_bucket_mb", "MB through the server for an artifact of 256 MiB in a bucket", 1)
    yield at_least(found, "log_mb", "MB/s of masked log chunks of 512 KiB ÷ bare INSERT and COMMIT", 0.5)
    yield at_most(found, "log_flat", "the last of many chunks of a step ÷ chunk 20", 1.2)
    yield at_most(found, "masks", "a chunk of 512 KiB with 1,000 masks ÷ with none", 1.5)
    yield at_most(found, "finalize_mb", "memory for the finalizing of a log, MiB", 32)
    yield below(found, "followers_p99_ms", "append → received by 1,000 followers, p99, ms", 100)
    yield at_most(found, "followers_reads", "reads for 1,000 followers ÷ for one", 1.1)


def _channel_aims(found: dict[str, Any]) -> Iterator[Row]:
    parts = found.get("channels") or {}
    executing = (parts.get("beats") or {}).get("executing", 0)
    waiting = ((parts.get("memory") or {}).get("channel") or {}).get("waiting", 0)
    beat = f"server CPU of a heartbeat over HTTP ÷ over a channel, {executing:,} executing"
    yield at_least(found, "beats_vs_http", beat, 5)
    claim = "submit → job of a waiting channel ÷ of a native long poll, p50"
    yield at_most(found, "channel_claim_vs_poll", claim, 1.25)
    words = "executions/s over channels, results read and stored ÷ of native jobs over HTTP"
    yield at_least(found, "channel_lifecycles_vs_http", words, 1.2)
    yield at_most(found, "channel_memory_vs_poll", f"memory of a waiting channel ÷ of a long poll, {waiting:,}", 3)
    yield at_most(found, "claim_100_specs", "a claim of a runner with 100 hardware specs ÷ with one", 1.5)


def _actions_aims(found: dict[str, Any]) -> Iterator[Row]:
    words = "calls/s of log chunks of 4 KiB by runners ÷ native heartbeats/s that store a progress"
    yield at_least(found, "log_calls", words, 0.7)
    yield at_least(found, "actions_claims", "claims/s of runners, each with 20 secrets ÷ native claims/s", 0.6)
    rows = ((found.get("actions") or {}).get("used_tokens") or {}).get("rows", 0)
    yield at_most(found, "used_tokens", f"a runner's call with {rows:,} used tokens ÷ none", 1.2)


def _event_aims(found: dict[str, Any]) -> Iterator[Row]:
    delays = found.get("sse_ms") or {}
    for listeners in ("1", "100", "1000"):
        noun = "listener" if listeners == "1" else "listeners"
        yield below(delays, listeners, f"event → {int(listeners):,} {noun} at 100 events/s, p99, ms", 100)
    yield at_least(found, "sse_cost", "lifecycles/s with 1,000 listeners of their events ÷ without", 0.85)
    yield at_most(found, "log_followers_cost", "statements/s with 500 followers of a run ÷ with one", 1.2)


def _document_aims(metrics: dict[str, Any]) -> Iterator[Row]:
    load = "at half of the lifecycle rate"
    yield below(metrics, "scheduling_ms", f"{load}: submit → lease, p99, ms", 100)
    yield below(metrics, "lease_ms", f"{load}: a claim, p99, ms", 50)
    yield below(metrics, "fan_out_ms", f"{load}: event → listeners, p99, ms", 500)
    yield at_most(metrics, "exceeded", f"{load}: limits exceeded", 0)


def _evidence_aims(found: dict[str, Any]) -> Iterator[Row]:
    exports = (found.get("evidence") or {}).get("exports") or {}
    large, small = ((exports.get(org) or {}).get("events", 0) for org in ("large", "small"))
    yield at_most(found, "export_memory", f"memory for a bundle of {large:,} events ÷ of {small:,}, peak", 1.2)
    yield at_least(found, "verify_vs_hashing", "lines of a bundle verified/s ÷ only parsed and hashed once", 0.4)
    yield at_least(found, "replay_match", "share of 200 replays by the worker that match", 1.0)
    yield at_least(found, "replay_verify_vs_hashing", "records of replays confirmed/s ÷ only parsed and hashed", 0.5)


def _worker_aims(found: dict[str, Any]) -> Iterator[Row]:
    others = (found.get("end_of_job") or {}).get("others", 0)
    yield below(found, "end_of_job_ms", f"the worker's Python at the end of a job beside {others:,} processes, ms", 5)
    yield at_most(found, "traced_vs_bare", "all CPU of a traced compile ÷ bare", 1.8)
    yield at_most(found, "untraced_vs_bare", "all CPU of a compile with `trace: none` ÷ bare", 1.1)
    yield at_most(found, "trace_python", "Python for the trace of a compile ÷ CPU of the bare compile", 0.25)


def _lifecycle_aims(found: dict[str, Any]) -> Iterator[Row]:
    against_prefect = found.get("lifecycles_vs_prefect") or {}
    for calls, aim in PREFECT_AIMS.items():
        yield at_least(against_prefect, calls, f"lifecycles/s of {calls} calls ÷ Prefect", aim)
    against_servers = found.get("lifecycles_vs_servers") or {}
    yield at_least(
        against_servers, "three", "lifecycles/s of three calls ÷ the better one of Temporal and Hatchet", 1.5
    )
    yield at_least(found, "one_token", "lifecycles/s of 256 clients with one token ÷ of 64", 0.9)


def _lifecycles(found: dict[str, Any]) -> Iterator[Row]:
    against_prefect = found.get("layouts_vs_prefect") or {}
    for layout, flows in (found.get("layouts") or {}).items():
        for calls, flow in flows.items():
            notes = [f"÷ Prefect {number((against_prefect.get(layout) or {}).get(calls))}", *_spent(flow)]
            if "missing" in flow:
                notes = [flow["missing"]]
            yield Row(f"lifecycles/s, {calls} calls, {layout}", f"{number(flow['rate'])} ({'; '.join(notes)})")
    for calls, by_clients in (found.get("combining") or {}).items():
        for clients, flow in by_clients.items():
            yield Row(
                f"lifecycles/s, {calls} calls, {clients} clients", f"{number(flow['rate'])} ({'; '.join(_spent(flow))})"
            )
    yield Row("lifecycles/s, batch calls", number(found.get("bulk_lifecycles_per_s")))


def _spent(flow: dict[str, Any]) -> list[str]:
    each = flow.get("processor_ms")
    if not each:
        return []
    return [f"ms of a core: server {number(each.get('server'))}, SQL {number(each.get('PostgreSQL'))}"]


def _peers(peers: dict[str, Any]) -> Iterator[Row]:
    shown = (
        ("prefect", "lifecycles_per_s", "Prefect, over HTTP, flow runs/s"),
        ("prefect", "submits_per_s", "Prefect, over HTTP, only created/s"),
        ("procrastinate", "jobs_per_s", "procrastinate, in process, deferred singly, jobs/s"),
        ("procrastinate", "bulk_jobs_per_s", "procrastinate, in process, deferred in batches, jobs/s"),
        ("pgqueuer", "bulk_jobs_per_s", "pgqueuer, in process, enqueued in batches, jobs/s"),
        ("celery", "jobs_per_s", "Celery, Redis that syncs each write, jobs/s"),
        ("awa", "jobs_per_s", "awa, in process, inserted singly, jobs/s"),
        ("awa", "bulk_jobs_per_s", "awa, in process, inserted by COPY in batches, jobs/s"),
        ("river", "jobs_per_s", "River, in process, inserted singly, jobs/s"),
        ("river", "bulk_jobs_per_s", "River, in process, inserted in batches, jobs/s"),
        ("temporal", "lifecycles_per_s", "Temporal, over gRPC, workflows of one activity/s"),
        ("temporal", "workflows_per_s", "Temporal, over gRPC, workflows without an activity/s"),
        ("hatchet", "lifecycles_per_s", "Hatchet, over gRPC, tasks/s"),
    )
    for peer, figure, name in shown:
        result = peers.get(peer) or {}
        yield Row(name, number(result.get(figure)) + (f" ({result['missing']})" if "missing" in result else ""))


def _claims(found: dict[str, Any]) -> Iterator[Row]:
    yield Row("claims/s over HTTP, one job a call", number(found.get("claims_per_s")))
    yield Row("claims/s over HTTP, up to 64 jobs a call", number(found.get("bulk_claims_per_s")))
    yield Row("claims/s, minimal claim from pgbench", number(found.get("minimal_claims_per_s")))
    yield Row("claims/s, our SQL from pgbench", number(found.get("pgbench_claims_per_s")))
    yield Row("one job a call ÷ our SQL from pgbench", number(found.get("claims_vs_pgbench")))
    yield Row("several jobs a call ÷ our SQL from pgbench", number(found.get("bulk_claims_vs_pgbench")))


def _costs(found: dict[str, Any]) -> Iterator[Row]:
    costs = found.get("costs") or {}
    for operation, row in (costs.get("calls") or {}).items():
        names = {"lifecycle": "a five-call lifecycle", "empty": "an empty answer"}
        value = f"{number(row.get('python_ms'))} / {number(row.get('postgres_ms'))}"
        yield Row(f"{names.get(operation, operation)} over HTTP, ms of Python / PostgreSQL", value)
    if costs:
        yield Row("a minimal lifecycle of four commits, ms of PostgreSQL", number(costs.get("minimal_ms")))
        yield Row("Python CPU of a heartbeat ÷ a call without an operation", number(found.get("heartbeat_vs_floor")))
    for calls, operations in (costs.get("counts") or {}).items():
        total = operations["lifecycle"]
        value = f"{number(total['statements'])} / {number(total['trips'])} / {number(total['wal_bytes'] / 1000)}"
        yield Row(f"a lifecycle of {calls} calls: statements / round trips / kB of WAL", value)


def _sandbox(sandbox: dict[str, Any]) -> Iterator[Row]:
    for name, row in (sandbox.get("engines") or {}).items():
        ratio = f" (÷ bare {number(row['vs_bare'])})" if "vs_bare" in row else ""
        words = "fork, exec and wait of `true`, bare" if name == "bare" else f"a job of `true` in the engine {name}"
        yield Row(f"{words}, ms", number(row["seconds_ms"]) + ratio)
    for name, reason in (sandbox.get("missing") or {}).items():
        yield Row(f"a job of `true` in the engine {name}, ms", f"{MISSING} ({reason})")
    worker = sandbox.get("worker") or {}
    missing = f" ({worker['missing']})" if "missing" in worker else ""
    yield Row("jobs/s of one worker with eight slots, `true`", number(worker.get("jobs_per_s")) + missing)


def _scheduling(found: dict[str, Any]) -> Iterator[Row]:
    pages = found.get("lists") or {}
    jobs = f"{pages.get('jobs', 0):,} jobs"
    yield below(pages, "api_ms", f"the API's first page of {jobs}, ms", 50)
    yield below(pages, "admin_ms", f"the admin's first page of {jobs}, ms", 200)
    limits, fairness = (found.get(name) or {} for name in ("limits", "fairness"))
    asked, room = (limits.get("calls") or {}).get("claim") or {}, limits.get("room") or {}
    answered = (
        f"a tenant with free slots and jobs went without a claim, p99, ms (responses took {number(asked.get('p99'))})"
    )
    yield Row(answered, number((room.get("waits") or {}).get("p99")))
    empty = f"of {room.get('empty', 0):,} claims that found nothing, those with a job there that no other claim took"
    yield at_most(room, "missed", empty, 0)
    yield from _fairness(fairness)


def _fairness(fairness: dict[str, Any]) -> Iterator[Row]:
    for policy in ("fair", "fifo"):
        result = fairness.get(policy) or {}
        crowd = f"{policy}: nine small tenants beside one with {fairness.get('crowd', 0):,} jobs"
        if policy == "fair":
            yield at_most(fairness, "fair_seconds_vs_alone", f"{crowd}, their time ÷ alone", 1.1)
        place = number(result["place"]) if result.get("place") else f"not within {number(result.get('claims'))}"
        yield Row(f"{crowd}, position of their last claim (90 alone)", place if result else MISSING)


def _waiting(found: dict[str, Any]) -> Iterator[Row]:
    submit = found.get("submit_ms") or {}
    yield Row("the response to the submit in that, p50, ms", number(submit.get("p50")))
    idle = found.get("idle_polls") or {}
    polls = f"{idle.get('waiters', 0):,} idle long polls on one process"
    yield Row(f"{polls}, MB (alone {number(idle.get('rss_mb_alone'))})", number(idle.get("rss_mb")))
    yield Row(f"{polls}, database connections", number(idle.get("connections")))
    yield Row(f"{polls}, % of a core", number(idle.get("cpu_percent")))


def _channels(parts: dict[str, Any]) -> Iterator[Row]:
    for part, unit in (("beats", "a heartbeat"), ("lifecycles", "an execution")):
        for kind in ("channel", "http"):
            row = (parts.get(part) or {}).get(kind) or {}
            value = f"{number(row.get('server_ms'))} / {number(row.get('postgres_ms'))} at {number(row.get('per_s'))}/s"
            way = "a channel" if kind == "channel" else "HTTP"
            yield Row(f"{unit} over {way}, ms of a core: server / PostgreSQL", value if row else MISSING)
    for kind, way in (("channel", "channel"), ("poll", "native long poll")):
        held, waiting = ((parts.get(part) or {}).get(kind) or {} for part in ("claims", "memory"))
        value = f"{number(held.get('p50'))} / {number(held.get('p99'))}"
        yield Row(f"submit → job of a waiting {way}, p50 / p99, ms", value if held else MISSING)
        yield Row(f"a waiting {way}, KiB of the server", number(waiting.get("kib_each")))


def at_least(found: dict[str, Any], name: str, words: str, aim: float) -> Row:
    return _aimed(found, name, words, f"≥ {aim:g}", lambda value: value >= aim)


def at_most(found: dict[str, Any], name: str, words: str, aim: float) -> Row:
    return _aimed(found, name, words, f"≤ {aim:g}" if aim else "0", lambda value: value <= aim)


def below(found: dict[str, Any], name: str, words: str, aim: float) -> Row:
    return _aimed(found, name, words, f"< {aim:g}", lambda value: value < aim)


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
    columns = [dict(_shares(result)) for result in seen.values()]
    names = sorted({name: None for column in columns for name in column}, key=_kind)
    head = ["where", *(f"{FLOWS[flow]}, {number(result['per_s'])}/s" for flow, result in seen.items())]
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
