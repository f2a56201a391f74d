"""Compares what a run has left behind with what was promised during it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import Any
from uuid import UUID

from django.db import connection

from orchestrator.results.models import Metric
from runtime_jobs.identifiers import public_id_of, uuid_of
from runtime_jobs.models import Job
from runtime_jobs.states import FINAL_STATES, FailureReason, JobState
from tests.chaos.channel_runners import FinalMessage, RunnerLedger
from tests.chaos.client import Ledger
from tests.chaos.runner import ChaosRun
from tests.chaos.workflow_ledger import WorkflowVerdict, judge_workflows

# A job with two runs, two final events, or a run that another job has too; a root of which two attempts succeeded; or a
# report with two metrics, because each result of a runner has one.
DOUBLE = """
    SELECT job_id FROM ingest_runs GROUP BY job_id HAVING count(*) > 1
    UNION
    SELECT job_ulid FROM runtime_job_events WHERE to_state = ANY(%s) GROUP BY job_ulid HAVING count(*) > 1
    UNION
    SELECT ingest_run_id FROM runtime_jobs WHERE ingest_run_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1
    UNION
    SELECT root_job_ulid FROM runtime_jobs WHERE state = 'succeeded' GROUP BY root_job_ulid HAVING count(*) > 1
    UNION
    SELECT r.job_ulid FROM result_reports r JOIN result_metrics m ON m.report_id = r.id GROUP BY 1 HAVING count(*) > 1
"""
# A minute of a job that two records bill, or a job whose records and watermark disagree.
DOUBLE_MINUTES = """
    SELECT u.job_ulid FROM usage_records u, generate_series(u.minute - u.minutes + 1, u.minute) billed
     GROUP BY u.job_ulid, billed HAVING count(*) > 1
    UNION
    SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN usage_records u USING (job_ulid)
     GROUP BY j.job_ulid, j.last_billed_minute
    HAVING coalesce(j.last_billed_minute, 0) <> coalesce(sum(u.minutes), 0)
"""
# The events that the webhook wants: all of jobs since it was created.
WANTED = """
    SELECT event_ulid FROM runtime_job_events WHERE created_at >= (SELECT min(created_at) FROM webhooks)
"""
# Runs whose job ended otherwise before their worker reported: results of no job.
ORPHANS = """
    SELECT count(*) FROM ingest_runs r LEFT JOIN runtime_jobs j ON j.ingest_run_id = r.run_id WHERE j.id IS NULL
"""


@dataclass(frozen=True)
class Verdict:
    seed: int
    jobs: int
    final: int
    double_results: int
    double_minutes: int
    double_executions: int
    lost_writes: int
    lost_results: list[str]
    acknowledged_results: int
    minutes: int
    audit: list[str]
    recovery: list[float]
    never_recovered: int
    unasked: int
    lost_deliveries: int
    deliveries: int
    repeated_deliveries: int
    orphans: int
    wrong: list[str]
    workflows: WorkflowVerdict
    log_bytes: int
    connections: list[int]
    states: dict[str, int]

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong, in words; empty is good."""
        numbers = {
            "jobs have not ended": self.jobs - self.final,
            "jobs have two results": self.double_results,
            "jobs have minutes that are billed twice or not recorded": self.double_minutes,
            "jobs were sent to two runners": self.double_executions,
            "acknowledged writes are lost": self.lost_writes,
            "acknowledged results are lost": len(self.lost_results),
            "jobs that no client submitted": self.unasked,
            "events did not reach the webhook": self.lost_deliveries,
            "answers that no fault excuses": len(self.wrong),
            "faults were not recovered from": self.never_recovered,
            "servers received no connection": self.connections.count(0),
        } | self.workflows.faults
        return [f"{number} {words}" for words, number in numbers.items() if number] + self.audit

    def line(self) -> str:
        """The last line of the output."""
        names = ("seed", "jobs", "final", "double_results", "double_minutes", "lost_writes", "acknowledged_results")
        figures = {name: getattr(self, name) for name in names} | {"lost_results": len(self.lost_results)}
        figures |= {"workflow_runs": self.workflows.runs, "unfinished_runs": len(self.workflows.unfinished_runs)}
        figures |= {"log_bytes": self.log_bytes, "lost_logs": len(self.workflows.lost_logs)}
        figures |= {"lost_artifacts": len(self.workflows.lost_artifacts), "leaks": len(self.workflows.leaks)}
        figures |= {"deliveries": self.deliveries, "lost_deliveries": self.lost_deliveries}
        figures |= {"connections": self.connections}
        recovery: dict[str, Any] = {"p50": None, "max": None}
        if self.recovery:
            recovery = {"p50": round(median(self.recovery), 2), "max": round(max(self.recovery), 2)}
        return json.dumps(figures | {"audit": self.audit, "recovery_seconds": recovery})


def judge(chaos_run: ChaosRun, audit: list[str]) -> Verdict:
    states = dict(Job.objects.values_list("job_ulid", "state"))
    recovered = [recovery.seconds for recovery in chaos_run.recoveries]
    runners = chaos_run.runners.ledger
    return Verdict(
        seed=chaos_run.seed,
        jobs=len(states),
        final=sum(state in FINAL_STATES for state in states.values()),
        double_results=len(_rows(DOUBLE, [sorted(FINAL_STATES)])),
        double_minutes=len(_rows(DOUBLE_MINUTES)),
        double_executions=sum(number > 1 for number in runners.received.values()),
        lost_writes=lost(chaos_run.ledger, states),
        lost_results=lost_results(runners),
        acknowledged_results=len(runners.acknowledged),
        minutes=_rows("SELECT coalesce(sum(minutes), 0) FROM usage_records")[0][0],
        audit=audit,
        recovery=[seconds for seconds in recovered if seconds is not None],
        never_recovered=recovered.count(None),
        unasked=unasked(chaos_run.ledger),
        lost_deliveries=len(wanted_events() - set(chaos_run.receiver.accepted)),
        deliveries=len(chaos_run.receiver.accepted),
        repeated_deliveries=sum(number > 1 for number in chaos_run.receiver.accepted.values()),
        orphans=_rows(ORPHANS)[0][0],
        wrong=[
            *(*chaos_run.ledger.wrong, *runners.wrong),
            *(*chaos_run.workflows.ledger.wrong, *chaos_run.receiver.wrong),
        ],
        workflows=judge_workflows(chaos_run.workflows.ledger, chaos_run.state / "log"),
        log_bytes=chaos_run.workflows.ledger.log_bytes,
        connections=chaos_run.proxy.connections,
        states={state: list(states.values()).count(state) for state in sorted(set(states.values()))},
    )


def lost(ledger: Ledger, states: dict[str, str]) -> int:
    """Jobs that were acknowledged and are not there, and cancels that were taken and left no trace."""
    asked = set(Job.objects.filter(cancel_requested_at__isnull=False).values_list("job_ulid", flat=True))
    gone = [job for job in ledger.submitted.values() if job not in states]
    return len(gone) + len(ledger.canceled - asked)


def lost_results(ledger: RunnerLedger) -> list[str]:
    """Describe the results that were acknowledged to a runner and that the job or the report does not have."""
    jobs = {job.job_ulid: job for job in Job.objects.filter(job_type="oci")}
    values = dict(Metric.objects.filter(report__job__isnull=False).values_list("report__job_id", "value"))
    found = []
    for result in ledger.acknowledged:
        job_ulid = public_id_of("rtj", UUID(result.job))
        job = jobs.get(job_ulid)
        if job is None or not _counts(result, job, values.get(job_ulid)):
            found.append(f"{result} {job and job.state} {job and job.failure_reason} {values.get(job_ulid)}")
    return found


def _counts(result: FinalMessage, job: Job, value: float | None) -> bool:
    """Return whether the job ended as its runner reported, or had ended otherwise before (contract 3.6)."""
    was_canceled = job.state == JobState.CANCELED and job.cancel_requested_at is not None
    if was_canceled:
        return True
    if result.event != "completed":
        return job.state == JobState.FAILED
    if job.state == JobState.SUCCEEDED:
        return value == result.value
    assert result.acknowledged_at is not None
    is_unread = job.failure_reason in {FailureReason.RESULT_MISSING, FailureReason.RESULT_UNREADABLE}
    return job.state == JobState.FAILED and not is_unread and job.finished_at <= result.acknowledged_at


def wanted_events() -> set[str]:
    """Return the ids of the events that the webhook must have received."""
    return {str(uuid_of(event_ulid)) for (event_ulid,) in _rows(WANTED)}


def unasked(ledger: Ledger) -> int:
    """Jobs under a key that made another one, too: every client has insisted until it was answered."""
    known = set(ledger.submitted.values())
    roots = Job.objects.filter(retry_of_job_ulid=None).exclude(job_type="actions").values_list("job_ulid", flat=True)
    return len(set(roots) - known) + len(ledger.submitted) - len(known)


def _rows(question: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(question, values)
        return list(cursor.fetchall())
