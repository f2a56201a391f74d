"""Check the invariants on the live database, all in one snapshot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.db import connection

from orchestrator.audit.chains import broken_checkpoints, broken_files, broken_histories, broken_operator_chains
from orchestrator.audit.housekeeping_invariants import orphaned_mirrors
from orchestrator.audit.invariants import INVARIANTS, Invariant
from orchestrator.audit.storage_invariants import missing_objects, unreadable_values
from orchestrator.evidence.checkpoint_files import CheckpointFile, checkpoint_files
from orchestrator.evidence.signing_keys import public_keys
from runtime_jobs.read_snapshot import read_snapshot

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


def run_audit(*, chains: bool = False, keys: Sequence[Ed25519PublicKey] | None = None) -> list[AuditFinding]:
    """Return the broken invariants; an empty list is good.

    Args:
        chains: Also compute the hash of every event, and compare what the events bind with the rows of the jobs. Verify
            the chains of operator events, and the checkpoints with their copies. This reads the whole event history.
        keys: The keys whose signatures of checkpoints count. None: those of the database, which its owner can change.

    Raises:
        OSError: A file of CHECKPOINT_DIR cannot be read.
        SnapshotTimeout: It takes longer than SNAPSHOT_SECONDS.
    """
    # Before the snapshot: each file was written after the commit of its row, so the snapshot has the row.
    files = list(checkpoint_files()) if chains else []
    with read_snapshot(settings.SNAPSHOT_SECONDS):
        found = [finding for rule in INVARIANTS if (finding := _check(rule))]
        return found + (list(_broken_chains(files, keys)) if chains else [])


def _check(invariant: Invariant) -> AuditFinding | None:
    with connection.cursor() as cursor:
        cursor.execute(invariant.broken)
        broken = tuple(sorted({str(row[0]) for row in cursor.fetchmany(MAX_EXAMPLES)}))
    return AuditFinding(invariant.code, invariant.rule, broken) if broken else None


def _broken_chains(
    files: Sequence[CheckpointFile] = (), keys: Sequence[Ed25519PublicKey] | None = None
) -> Iterator[AuditFinding]:
    trusted = public_keys() if keys is None else keys
    broken = (
        broken_histories(),
        broken_operator_chains(),
        broken_checkpoints(trusted),
        broken_files(files),
    )
    for code, rule, place in chain.from_iterable(broken):
        yield AuditFinding(code, rule, (place,))
