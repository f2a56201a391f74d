"""Check the invariants on the live database, all in one snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from django.db import connection, transaction

from orchestrator.audit.housekeeping_invariants import orphaned_mirrors
from orchestrator.audit.invariants import INVARIANTS, Invariant
from orchestrator.audit.storage_invariants import missing_objects, unreadable_values
from runtime_jobs import events
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES

MAX_EXAMPLES = 20  # of each invariant: enough to begin an investigation


@dataclass(frozen=True)
class AuditFinding:
    """An invariant that is broken, and the rows for which it is."""

    code: str
    rule: str
    broken_for: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.code}: {self.rule} Broken for {', '.join(self.broken_for)}"


def audit_objects() -> list[AuditFinding]:
    """Return complete objects that the storage lacks, sealed values that do not open, and mirrors without a repository.

    Raises:
        OSError: The storage of artifacts does not answer.
    """
    rules = (
        ("O4", "The storage has each complete object with its size.", missing_objects()),
        ("O5", "A known root key opens each sealed value at its place.", unreadable_values()),
        ("O6", "The folder of a mirror belongs to a repository.", orphaned_mirrors()),
    )
    found = [(code, rule, tuple(islice(broken, MAX_EXAMPLES))) for code, rule, broken in rules]
    return [AuditFinding(code, rule, broken) for code, rule, broken in found if broken]


def run_audit(*, chains: bool = False) -> list[AuditFinding]:
    """Return the broken invariants; an empty list is good.

    Args:
        chains: Also compute the hash of every event, and compare what the events bind with the rows of the jobs. This
            reads the whole event history.
    """
    alone = not connection.in_atomic_block
    with transaction.atomic():
        if alone:  # a caller's transaction has its own snapshot
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                cursor.execute("SET LOCAL statement_timeout = 0")  # a long history takes minutes
        found = [finding for rule in INVARIANTS if (finding := _check(rule))]
        return found + (list(_broken_chains()) if chains else [])


def _check(invariant: Invariant) -> AuditFinding | None:
    with connection.cursor() as cursor:
        cursor.execute(invariant.broken)
        broken = tuple(sorted({str(row[0]) for row in cursor.fetchmany(MAX_EXAMPLES)}))
    return AuditFinding(invariant.code, invariant.rule, broken) if broken else None


def _broken_chains() -> Iterator[AuditFinding]:
    for job in Job.objects.order_by("id").iterator(chunk_size=200):
        seq = events.first_invalid_seq(job.job_ulid)
        if seq is not None:
            yield AuditFinding(
                "I8c", "The hash of every event is that of its row.", (f"{job.job_ulid} at event {seq}",)
            )
        for part in events.unbound_parts(job, _input_digest(job)):
            rule = "The first and the final event bind the input and the result of the job."
            yield AuditFinding("I8d", rule, (f"{job.job_ulid}: {part}",))


def _input_digest(job: Job) -> str:
    """Return the digest of the specification in the columns of a job, empty if they no longer contain one."""
    try:
        return JOB_TYPES[job.job_type].from_job(job).digest
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""
