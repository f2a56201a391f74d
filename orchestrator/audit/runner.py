"""Run the invariants over the live database, all in one snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connection, transaction

from orchestrator.audit.invariants import INVARIANTS, Invariant
from runtime_jobs import events
from runtime_jobs.models import Job

SHOWN = 20  # of each invariant: enough to start looking


@dataclass(frozen=True)
class AuditFinding:
    """An invariant that does not hold, and for what."""

    code: str
    rule: str
    broken_for: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.code}: {self.rule} Broken for {', '.join(self.broken_for)}"


def run_audit(*, chains: bool = False) -> list[AuditFinding]:
    """What is broken; empty is good. `chains` also computes every event's hash again, which reads the whole trail."""
    alone = not connection.in_atomic_block
    with transaction.atomic():
        if alone:  # inside a caller's transaction its own snapshot has to do
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                cursor.execute("SET LOCAL statement_timeout = 0")  # a long trail takes its time
        found = [finding for rule in INVARIANTS if (finding := _look(rule))]
        return found + (list(_broken_chains()) if chains else [])


def _look(invariant: Invariant) -> AuditFinding | None:
    with connection.cursor() as cursor:
        cursor.execute(invariant.broken)
        broken = tuple(sorted({str(row[0]) for row in cursor.fetchmany(SHOWN)}))
    return AuditFinding(invariant.code, invariant.rule, broken) if broken else None


def _broken_chains() -> Iterator[AuditFinding]:
    for job_ulid in Job.objects.order_by("id").values_list("job_ulid", flat=True).iterator():
        seq = events.first_invalid_seq(job_ulid)
        if seq is not None:
            yield AuditFinding("I8c", "The hash of every event is that of its row.", (f"{job_ulid} at event {seq}",))
