"""Records what the server has answered about workflow runs, and compares it with what a run has left behind."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from django.db import connection

from orchestrator.artifacts.storage import artifact_storage
from orchestrator.step_logs.step_log_reads import read_step_log
from orchestrator.workflows.run_reads import state_of_run
from runtime_jobs.models import Job, JobStep, StoredArtifact, WorkflowRun
from runtime_jobs.states import JobState
from tests.runtime_jobs.plain_scrubbing import scrubbed


@dataclass
class SentLog:
    """The chunks of one step.

    Attributes:
        masks: The secrets of the claim.
        acknowledged: The chunks whose acceptance was answered, by number.
        pending: Chunks that were sent without an answer: stored or not.
    """

    masks: list[bytes]
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    pending: dict[int, bytes] = field(default_factory=dict)

    def possible(self) -> Iterator[bytes]:
        """Yield the logs that the server may have: all acknowledged chunks in order, with or without the others."""
        yield self._stored(self.acknowledged)
        if self.pending:
            yield self._stored(self.acknowledged | self.pending)

    def _stored(self, chunks: dict[int, bytes]) -> bytes:
        """Return what is stored of these chunks. Before a missing one, too, the beginning of a secret is masked."""
        text, gaps = b"", []
        for seq in sorted(chunks):
            if seq - 1 not in chunks:
                gaps.append(len(text))
            text += chunks[seq]
        return scrubbed(text, self.masks, gaps)


@dataclass
class WorkflowLedger:
    """The acknowledgements to clients and runners of workflow runs.

    Attributes:
        runs: The ids of the jobs of each run, by the idempotency key of its request.
        canceled: The batches whose cancel was accepted.
        begun: The number of claims whose runner has begun the job, by the number of the job.
        ends: The conclusions of jobs whose end was answered, by the number of the job.
        logs: The logs by the number of the step.
        artifacts: Uploaded artifacts: their number and the SHA-256 of their bytes.
        secrets: All values that were ever set.
        counts: What happened to runners.
        wrong: Answers that no fault excuses.
    """

    runs: dict[str, list[str]] = field(default_factory=dict)
    canceled: set[str] = field(default_factory=set)
    begun: Counter[int] = field(default_factory=Counter)
    ends: dict[int, str] = field(default_factory=dict)
    logs: dict[int, SentLog] = field(default_factory=dict)
    artifacts: dict[int, str] = field(default_factory=dict)
    secrets: set[bytes] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def log_bytes(self) -> int:
        """The number of bytes of logs whose acceptance was answered."""
        return sum(len(chunk) for log in self.logs.values() for chunk in log.acknowledged.values())


@dataclass(frozen=True)
class WorkflowVerdict:
    """The differences between the ledger and the installation. All lists are empty if nothing is wrong."""

    runs: int
    unfinished_runs: list[str]
    lost_runs: list[str]
    changed_ends: list[str]
    lost_logs: list[str]
    lost_artifacts: list[str]
    leaks: list[str]

    @property
    def faults(self) -> dict[str, int]:
        """The numbers of differences, in words."""
        return {
            "workflow runs are not completed": len(self.unfinished_runs),
            "workflow runs are lost or twice": len(self.lost_runs),
            "acknowledged ends of workflow jobs are lost": len(self.changed_ends),
            "logs have not what was acknowledged": len(self.lost_logs),
            "acknowledged artifacts are lost": len(self.lost_artifacts),
            "places contain a secret": len(self.leaks),
        }

    @property
    def examples(self) -> list[str]:
        lists = (self.unfinished_runs, self.lost_runs, self.changed_ends, self.lost_logs, self.lost_artifacts)
        return [example for found in (*lists, self.leaks) for example in found[:5]]


def judge_workflows(ledger: WorkflowLedger, log_folder: Path) -> WorkflowVerdict:
    """Compare. The storage of objects must answer.

    Args:
        ledger: What was answered.
        log_folder: The folder of what the processes have written.
    """
    runs = list(WorkflowRun.objects.select_related("batch"))
    open_runs = [run for run in runs if run.completed_at is None or state_of_run(run).conclusion is None]
    return WorkflowVerdict(
        runs=len(runs),
        unfinished_runs=[f"run {run.pk} of {run.batch.batch_ulid}" for run in open_runs],
        lost_runs=list(_lost_runs(ledger, len(runs))),
        changed_ends=list(_changed_ends(ledger)),
        lost_logs=list(_lost_logs(ledger)),
        lost_artifacts=list(_lost_artifacts(ledger)),
        leaks=list(_leaks(ledger, log_folder)),
    )


def _lost_runs(ledger: WorkflowLedger, stored: int) -> Iterator[str]:
    jobs = set(Job.objects.filter(job_type="actions").values_list("job_ulid", flat=True))
    for key, ids in ledger.runs.items():
        if not jobs.issuperset(ids):
            yield f"{key}: {sorted(set(ids) - jobs)}"
    if stored != len(ledger.runs):
        yield f"{stored} runs are stored, {len(ledger.runs)} were acknowledged"


def _changed_ends(ledger: WorkflowLedger) -> Iterator[str]:
    """Yield jobs whose stored end is not the one that was answered, and jobs that two runners have begun."""
    jobs = {job.pk: job for job in Job.objects.filter(job_type="actions")}
    expected = {"success": JobState.SUCCEEDED, "failure": JobState.FAILED, "cancelled": JobState.CANCELED}
    for key, conclusion in ledger.ends.items():
        job = jobs.get(key)
        if job is None or job.state != expected[conclusion]:
            yield f"job {key}: {conclusion} was acknowledged, stored is {job and job.state}"
    yield from (f"job {key} was begun {number} times" for key, number in ledger.begun.items() if number > 1)


def _lost_logs(ledger: WorkflowLedger) -> Iterator[str]:
    steps = {step.pk: step for step in JobStep.objects.filter(pk__in=ledger.logs)}
    for key, sent in ledger.logs.items():
        stored = b"".join(read_step_log(steps[key]))
        if stored not in sent.possible():
            expected = next(sent.possible())
            place = next((n for n, (a, b) in enumerate(zip(stored, expected, strict=False)) if a != b), None)
            sizes = f"{len(stored)} bytes stored, {len(expected)} expected"
            yield f"step {key} of {steps[key].job_id}: {sizes}, the first difference is at {place}"


def _lost_artifacts(ledger: WorkflowLedger) -> Iterator[str]:
    rows = {row.pk: row for row in StoredArtifact.objects.filter(pk__in=ledger.artifacts)}
    for key, digest in ledger.artifacts.items():
        row = rows.get(key)
        if row is None:
            yield f"artifact {key}: no row"
            continue
        data = artifact_storage().read(row.object_key, 0, row.byte_count + 1)
        if hashlib.sha256(data).hexdigest() != digest:
            yield f"artifact {key}: other bytes"


def _leaks(ledger: WorkflowLedger, log_folder: Path) -> Iterator[str]:
    """Yield each table, object and log of a process that contains a secret, plainly or encoded."""
    forms = {form for secret in ledger.secrets for form in _forms(secret)}
    for place, data in _places(log_folder):
        if any(form in data for form in forms):
            yield place


def _forms(secret: bytes) -> Iterable[bytes]:
    shown = {secret, base64.b64encode(secret).rstrip(b"=")[:-1]}
    return shown | {form.hex().encode() for form in shown}  # as columns of bytes are displayed


def _places(log_folder: Path) -> Iterator[tuple[str, bytes]]:
    with connection.cursor() as cursor:
        for table in connection.introspection.django_table_names(only_existing=True):
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            yield table, "\n".join(row[0] for row in cursor.fetchall()).encode()
    storage = artifact_storage()
    for key, _age in storage.objects("actions/"):
        yield key, storage.read(key, 0, storage.size_of(key) or 0)
    for path in log_folder.iterdir():
        yield path.name, path.read_bytes()
