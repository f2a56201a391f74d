"""Compares what a run has left behind with what was promised during it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import Any

from django.db import connection

from runtime_jobs.models import Job
from runtime_jobs.states import FINAL_STATES
from tests.chaos.client import Ledger
from tests.chaos.runner import Fire

# A job with two runs, two final events, or a run that another job has too; or a root of which two attempts succeeded.
DOUBLE = """
    SELECT job_id FROM ingest_runs GROUP BY job_id HAVING count(*) > 1
    UNION
    SELECT job_ulid FROM runtime_job_events WHERE to_state = ANY(%s) GROUP BY job_ulid HAVING count(*) > 1
    UNION
    SELECT ingest_run_id FROM runtime_jobs WHERE ingest_run_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1
    UNION
    SELECT root_job_ulid FROM runtime_jobs WHERE state = 'succeeded' GROUP BY root_job_ulid HAVING count(*) > 1
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
    lost_writes: int
    audit: list[str]
    recovery: list[float]
    never_recovered: int
    unasked: int
    orphans: int
    wrong: list[str]
    states: dict[str, int]

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong, in words; empty is good."""
        told = {
            "jobs have not ended": self.jobs - self.final,
            "jobs have two results": self.double_results,
            "acknowledged writes are lost": self.lost_writes,
            "jobs that nobody was told of": self.unasked,
            "answers that no fault excuses": len(self.wrong),
            "blows were not recovered from": self.never_recovered,
        }
        return [f"{number} {words}" for words, number in told.items() if number] + self.audit

    def line(self) -> str:
        """The last line of the output."""
        said = {name: getattr(self, name) for name in ("seed", "jobs", "final", "double_results", "lost_writes")}
        recovery: dict[str, Any] = {"p50": None, "max": None}
        if self.recovery:
            recovery = {"p50": round(median(self.recovery), 2), "max": round(max(self.recovery), 2)}
        return json.dumps(said | {"audit": self.audit, "recovery_seconds": recovery})


def judge(fire: Fire, audit: list[str]) -> Verdict:
    states = dict(Job.objects.values_list("job_ulid", "state"))
    recovered = [recovery.seconds for recovery in fire.recoveries]
    return Verdict(
        seed=fire.seed,
        jobs=len(states),
        final=sum(state in FINAL_STATES for state in states.values()),
        double_results=len(_rows(DOUBLE, [sorted(FINAL_STATES)])),
        lost_writes=lost(fire.ledger, states),
        audit=audit,
        recovery=[seconds for seconds in recovered if seconds is not None],
        never_recovered=recovered.count(None),
        unasked=unasked(fire.ledger),
        orphans=_rows(ORPHANS)[0][0],
        wrong=fire.ledger.wrong,
        states={state: list(states.values()).count(state) for state in sorted(set(states.values()))},
    )


def lost(ledger: Ledger, states: dict[str, str]) -> int:
    """Jobs that were acknowledged and are not there, and cancels that were taken and left no trace."""
    asked = set(Job.objects.filter(cancel_requested_at__isnull=False).values_list("job_ulid", flat=True))
    gone = [job for job in ledger.submitted.values() if job not in states]
    return len(gone) + len(ledger.canceled - asked)


def unasked(ledger: Ledger) -> int:
    """Jobs under a key that made another one, too: every client has insisted until it was answered."""
    known = set(ledger.submitted.values())
    roots = Job.objects.filter(retry_of_job_ulid=None).values_list("job_ulid", flat=True)
    return len(set(roots) - known) + len(ledger.submitted) - len(known)


def _rows(question: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(question, values)
        return list(cursor.fetchall())
