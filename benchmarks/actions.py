"""Measures what runners of workflow jobs call over HTTP: chunks of logs, claims, and tokens among many used ones.

Runners take turns with workers of the native API on one process of the server, so that a machine that becomes slower
does so for both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from secrets import token_urlsafe
from typing import Any

from django.db import connection

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.load import LoadPlan, loaded
from benchmarks.sizes import Sizes
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.claims import TokenPurpose, new_token
from orchestrator.job_tokens.partitions import create_partitions, partition_name
from orchestrator.protocols.shithub.jobs.calls import perform_call
from orchestrator.protocols.shithub.jobs.effects import check_cancel
from orchestrator.secrets.operations import set_secret
from orchestrator.services import actions_runners
from orchestrator.workflows import runs
from orchestrator.workflows.runs import WorkflowRunRequest
from runtime_jobs.models import Job, JobStep, Repository, WorkflowEvent, WorkflowRun
from runtime_jobs.workflows.parsing import parse_workflow
from tests.factories import ALICE, COMMIT, OPERATOR
from workers.models import ActionsRunner

LAYOUT = "asgi-1"
LABEL = "linux"
CHUNK_BYTES = 4 << 10
SECRETS = 20
RUNNER_CAPACITY = 64  # the maximum of the protocol
CLAIMS_OF_RUNNER = 55  # of the 60 heartbeats that a runner may send in a minute
WORKFLOW = b"on: push\njobs:\n  build:\n    runs-on: linux\n    steps:\n      - run: make\n"
ROUND = 25  # calls with few and with many used tokens in turns


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `log_calls`, `actions_claims` and `used_tokens`, and the figures behind them as `actions`."""
    is_full = sizes.name == "full"
    world = _World(sizes)
    with servers.serving(cluster, LAYOUT) as server:
        rates = _in_turns(world, server, sizes)
    used = _used_tokens(world, rows=20_000_000 if is_full else 1_000_000, calls=1_000 if is_full else 400)
    return {
        "log_calls": _ratio(rates["logs"], rates["heartbeats"]),
        "actions_claims": _ratio(rates["runner_claims"], rates["claims"]),
        "used_tokens": round(used["many_ms"] / used["none_ms"], 2),
        "actions": {
            "per_s": rates,
            "used_tokens": used,
            "log_calls_vs_unwritten": _ratio(rates["logs"], rates["unwritten"]),
        },
    }


class _World:
    """A repository with 20 secrets, whose jobs wait in one pool, and native jobs that wait in another one."""

    def __init__(self, sizes: Sizes) -> None:
        self.native = tenants.settled("native", organizations=["acme"], workers=256)
        project = tenants.project("shithub", "actions")
        tenants.settled("actions", organizations=[], workers=0)
        self.repository = Repository.objects.create(
            project=project, owner="shithub", name="bench", is_private=True, origin="/srv/bench.git"
        )
        for number in range(SECRETS):
            set_secret(
                organization=project.organization,
                repository=None,
                name=f"SECRET_{number}",
                value=token_urlsafe(30),
                cause=Cause(OPERATOR),
            )
        tenants.number_jobs()
        self.claims = int(sizes.filled * sizes.claim_seconds)
        self._runners = self._runs = 0

    def _start_run(self) -> WorkflowRun:
        self._runs += 1
        workflow = parse_workflow(WORKFLOW).workflow
        assert workflow is not None
        request = WorkflowRunRequest(
            repository_id=self.repository.pk,
            workflow_file=".shithub/workflows/ci.yml",
            workflow=workflow,
            head_sha=COMMIT,
            head_ref="refs/heads/main",
            event=WorkflowEvent.PUSH,
            event_payload={"ref": "refs/heads/main"},
            trigger_id=f"push:{self._runs}",
            actor_name="alice",
            correlation_id="bench",
        )
        return runs.start_workflow_run(request, default_pool="actions", actor=ALICE).run

    def fill(self, jobs: int) -> None:
        """Let so many jobs wait: the job of a new run, and copies of it with its step."""
        missing = jobs - Job.objects.queued().filter(pool="actions").count()
        if missing < 1:
            return
        run = self._start_run()
        first = Job.objects.get(batch_id=run.batch_id)
        if missing > 1:
            tenants.copy(first, missing - 1, events=True)
        columns = [field.column for field in JobStep._meta.concrete_fields if field.column not in {"id", "job_ulid"}]  # noqa: SLF001 Django's name
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(f's."{name}"' for name in columns)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO runtime_job_steps (job_ulid, {names}) SELECT j.job_ulid, {values}"
                " FROM runtime_jobs j, runtime_job_steps s WHERE j.batch_id = %s AND s.job_ulid = %s"
                " AND NOT EXISTS (SELECT FROM runtime_job_steps o WHERE o.job_ulid = j.job_ulid)",
                [run.batch_id, first.job_ulid],
            )

    def runners(self, number: int) -> list[tuple[str, str]]:
        """Return the names and registration tokens of so many new runners."""
        found = []
        for _ in range(number):
            self._runners += 1
            row, _, token = actions_runners.register_runner(
                name=f"runner-{self._runners}",
                labels=[LABEL],
                capacity=RUNNER_CAPACITY,
                pool="actions",
                isolation="namespaces",
                cause=Cause(OPERATOR),
            )
            found.append((row.name, token))
        return found


def _in_turns(world: _World, server: servers.Serving, sizes: Sizes) -> dict[str, list[float]]:
    """Rates of the calls, one for each round. A first round warms up the process, and does not count."""
    rates: dict[str, list[float]] = {}
    for place in range(1 + sizes.rounds):
        for flow in ("logs", "heartbeats", "unwritten", "runner_claims", "claims"):
            is_claims = flow.endswith("claims")
            seconds = sizes.claim_seconds if is_claims else sizes.seconds / 2
            if flow == "claims":
                tenants.fill("native", "native", world.claims - Job.objects.queued().filter(pool="native").count())
            elif not is_claims and flow != "logs":
                tenants.fill("native", "native", sizes.clients)
            else:
                world.fill(world.claims if is_claims else sizes.clients)
            runners = -(-world.claims // CLAIMS_OF_RUNNER) if is_claims else sizes.clients
            workers = world.runners(runners) if flow in {"logs", "runner_claims"} else world.native.workers
            plan = LoadPlan(
                flow,
                server.address.host,
                server.address.port,
                sizes.clients,
                seconds=seconds,
                warmup=sizes.warmup,
                workers=workers,
            )
            tally = loaded(plan)
            if tally["surprises"] or not tally["rate"]:
                raise RuntimeError(f"{flow}: {tally['counts']} {tally['surprises']}")
            if place:
                rates.setdefault(flow, []).append(tally["rate"])
    return rates


def _ratio(ours: list[float], others: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(ours, others, strict=True)), 2)


def _used_tokens(world: _World, *, rows: int, calls: int) -> dict[str, float]:
    """Milliseconds of a call whose token expires on a day with so many used tokens, in turns with a day without.

    The call is a question for a cancel by the operation, in this process.
    """
    now = datetime.now(UTC)
    full, empty = now.date() + timedelta(days=2), now.date() + timedelta(days=3)
    create_partitions(full, 2)
    began = time.perf_counter()
    with connection.cursor() as cursor:
        # Random ids, as tokens have them; expiries of one day in order, as calls insert them.
        cursor.execute(
            f"INSERT INTO {partition_name(full)} (expires_at, jti, runner_id, job_id, used_at)"
            " SELECT %s::timestamptz + n * interval '1 day' / %s / 2,"
            " md5(n::text) || substr(md5((-n)::text), 1, 11), 1, 1, %s FROM generate_series(1, %s) n",
            [f"{full} 00:00:00+00", rows, now, rows],
        )
        cursor.execute(f"ANALYZE {partition_name(full)}")
    filled = time.perf_counter() - began
    call = {
        "none_ms": _caller(world, datetime.combine(empty, datetime.min.time(), UTC) + timedelta(hours=13)),
        "many_ms": _caller(world, datetime.combine(full, datetime.min.time(), UTC) + timedelta(hours=13)),
    }
    found: dict[str, list[float]] = {name: [] for name in call}
    for send in call.values():
        send()
    for _ in range(calls // ROUND):
        for name, send in call.items():
            for _ in range(ROUND):
                began = time.perf_counter()
                send()
                found[name].append(1000 * (time.perf_counter() - began))
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {partition_name(full)}, {partition_name(empty)}")
    medians = {name: round(statistics.median(each), 3) for name, each in found.items()}
    return {"rows": rows, "fill_seconds": round(filled, 1), **medians}


def _caller(world: _World, expires_at: datetime) -> Callable[[], None]:
    """Return a function that sends one call about a new running job, with a token of that expiry."""
    from orchestrator.protocols.shithub.heartbeat.operation import receive_heartbeat  # noqa: PLC0415
    from orchestrator.protocols.shithub.heartbeat.report import HeartbeatReport  # noqa: PLC0415
    from orchestrator.protocols.shithub.jobs.effects import change_job_status  # noqa: PLC0415

    ((name, _),) = world.runners(1)
    world.fill(1)
    claimed = receive_heartbeat(ActionsRunner.objects.get(name=name).pk, HeartbeatReport(labels=[LABEL]))
    assert claimed is not None
    perform_call(claimed.api_token, claimed.job.pk, lambda call: change_job_status(call, b'{"status":"running"}'))
    token = claimed.api_token

    def call() -> None:
        following = new_token(
            TokenPurpose.API,
            runner_id=token.runner_id,
            job_id=token.job_id,
            run_id=token.run_id,
            repository_id=token.repository_id,
            fence=token.fence,
            chain=0,
            now=expires_at,
        )
        outcome = perform_call(following, token.job_id, lambda made: check_cancel(made, b""))
        assert outcome.answer is not None

    return call
