"""Appends to the masked log of a step of a workflow job, and ends it.

The runner numbers its chunks 0, 1, 2 …; the first one under a number counts. A chunk that precedes an earlier one is
sealed and waits. All others continue one stream of bytes, in which `runtime_jobs.scrubbing` replaces the secrets. What
the scrubber holds back is sealed in the row of the log until the next chunk or the end of the step. So no row contains
a part of a secret, and nothing that was stored is changed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.sealing import seal, unseal
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.housekeeping.queue import request_task
from orchestrator.pubsub.job_updates import announcer
from orchestrator.secrets import masks as job_masks
from orchestrator.step_logs.rows import create_log, find_log, is_step_ended, lock_log_by_key, store_and_save
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobStep, StepAnnotation, StepLog, WaitingLogChunk
from runtime_jobs.scrubbing import MAX_FORM_BYTES, HeldBytes, Scrubbed, Scrubber, scrubbers
from runtime_jobs.workflow_commands import WorkflowCommand, read_commands

logger = logging.getLogger(__name__)

MAX_STEP_LOG_BYTES: Final = 100 << 20
MAX_WAITING_BYTES: Final = 16 << 20
MAX_WAITING_CHUNKS: Final = 4096
MAX_SKIPPED_RANGES: Final = 1000  # of numbers that may still arrive; of older ones a chunk counts as a repeat
MAX_ANNOTATIONS: Final = 100  # of a step
WAITING_PER_QUERY: Final = 16
TRUNCATED: Final = b"\n[The log of this step has reached 100 MiB. The rest was dropped.]\n"
OMITTED: Final = (
    b"\n[%d encoded spellings of the secrets of this job were not masked in this log: together all exceed the limit "
    b"of 24 MiB. The secrets themselves were masked. Use fewer or shorter secrets.]\n"
)
FINALIZE: Final = "finalize_step_log"  # the kind of the housekeeping task; its subject is the key of the log
SEALED_LOG: Final = "step-log"


@dataclass(frozen=True)
class StepLogResult:
    """The outcome of a chunk.

    Attributes:
        is_new: Whether the chunk is the first one under its number, and was not dropped at the limit.
        replacements: Number of secrets that were replaced by this call.
    """

    is_new: bool
    replacements: int


def append_step_log(
    uow: UnitOfWork, *, step: JobStep, seq: int, data: bytes, masks: Sequence[bytes | str]
) -> StepLogResult:
    """Append a chunk to the log of a step. The same number again changes nothing, whatever its bytes.

    The status of the step does not matter. What arrives after its end is added at the end of the log.

    Args:
        uow: The unit of work of the operation, with a transaction.
        step: The step.
        seq: The number of the chunk, from 0. Numbers may be left out.
        data: The bytes, at least one.
        masks: The secrets of the job's claim. They are the same for all chunks of a step.
    """
    uow.require_transaction()
    log = find_log(step.job_id, step.index)
    if log is None:
        has_ended = is_step_ended(step.pk)
        log = create_log(step.job_id, step.index)
    else:
        has_ended = step.is_ended
    if log.closed_at is None and has_ended:
        log.closed_at, log.closed_bytes = database_now(), log.stored_bytes
    writer = LogWriter(log, masks)
    is_new = writer.accept(seq, data)
    if is_new:
        writer.save()
        if log.closed_at is not None:
            request_task(FINALIZE, str(log.pk))
        uow.after_commit(announcer.announce, log.job_id)
    return StepLogResult(is_new, writer.replacements)


def close_step_log(uow: UnitOfWork, *, step: JobStep) -> None:
    """End the log of a step: store the chunks that waited and what was held back. Repeats change nothing.

    Args:
        uow: The unit of work of the operation that ends the step, with a transaction.
        step: The step.
    """
    uow.require_transaction()
    uow.after_commit(announcer.announce, step.job_id)  # also of a step without output
    log = find_log(step.job_id, step.index)
    if log is None or (log.closed_at is not None and log.held is None):
        return
    writer = LogWriter(log, _masks_for(log, step.job))
    writer.finish()
    if log.closed_at is None:
        writer.report_omitted()
        log.closed_at, log.closed_bytes = database_now(), log.stored_bytes + writer.output_bytes
    writer.save()
    request_task(FINALIZE, str(log.pk))


@operation
def flush_late_chunks(uow: UnitOfWork, *, key: int) -> None:
    """Store what was held back of chunks that arrived after the end of their step.

    Args:
        key: The key of the log.
    """
    log = lock_log_by_key(key)
    if log is None or log.closed_at is None or log.held is None:
        return
    writer = LogWriter(log, _masks_for(log, log.job))
    writer.finish()
    writer.save()
    uow.after_commit(announcer.announce, log.job_id)


def _masks_for(log: StepLog, job: Job) -> Sequence[bytes]:
    """Return the masks of a job. They are not read if nothing is held back."""
    return job_masks.masks_of(job) if log.held is not None or log.waiting_count else ()


class LogWriter:
    """Changes a locked log in memory; `save` writes it."""

    def __init__(self, log: StepLog, masks: Sequence[bytes | str]) -> None:
        self.log = log
        self.replacements = 0
        self._scrubber: Scrubber = scrubbers.get(masks)
        self._held = HeldBytes()
        if log.held is not None:
            self._held = HeldBytes(unseal(SEALED_LOG, bytes(log.held), context=log.sealing_context), log.held_masked)
        self._output: list[bytes] = []

    @property
    def output_bytes(self) -> int:
        """The number of bytes that `save` will add to the log."""
        return sum(map(len, self._output))

    def accept(self, seq: int, data: bytes) -> bool:
        """Take a chunk in its order. Returns False for a repeat, and for a log that has reached its limit."""
        log = self.log
        is_late = seq < log.next_seq
        if log.is_truncated or (is_late and not self._take_skipped(seq)):
            return False
        if seq > log.next_seq and log.closed_at is None:
            return self._wait(seq, data)
        if is_late:  # the chunks beside it in the log are not its neighbors by number
            self._interrupt()
            self._consume(data)
            self._interrupt()
        else:
            self._move_to(seq + 1, skipping_from=log.next_seq, skipping_to=seq)
            self._consume(data)
        self._consume_waiting(max_bytes=None)
        return True

    def finish(self) -> None:
        """Take all chunks that wait, whatever is missing, and what is held back."""
        self._consume_waiting(max_bytes=0)
        self._emit(self._scrubber.finish(self._held))

    def report_omitted(self) -> None:
        """Add a line to the end of the log if some spellings of its secrets were not masked."""
        if self.log.omitted_forms:
            self._output.append(OMITTED % self.log.omitted_forms)

    def save(self) -> None:
        """Write the log, the new chunk and the annotations."""
        output, commands = self.prepare()
        self._annotate(commands)
        store_and_save(self.log, output)

    def prepare(self) -> tuple[bytes, list[WorkflowCommand]]:
        """Set the columns of the log, and return the bytes to store and the workflow commands in them."""
        log, output = self.log, b"".join(self._output)
        if self._scrubber.omitted > log.omitted_forms:
            log.omitted_forms = self._scrubber.omitted
            warning = "job %s step %d: %d spellings of its secrets are not masked, because all exceed %d MiB"
            logger.warning(warning, log.job_id, log.step, log.omitted_forms, MAX_FORM_BYTES >> 20)
        log.held, log.held_masked = None, 0
        if self._held.data:
            log.held = seal(SEALED_LOG, self._held.data, context=log.sealing_context)
            log.held_masked = self._held.masked
        commands: list[WorkflowCommand] = []
        if output:
            log.needs_finalizing = True
            commands, log.open_line = read_commands(bytes(log.open_line), output)
        return output, commands

    def _take_skipped(self, seq: int) -> bool:
        """Return whether the number was left out, and remove it from those that were."""
        for place, (first, after) in enumerate(self.log.skipped):
            if first <= seq < after:
                rest = [[first, seq], [seq + 1, after]]
                self.log.skipped[place : place + 1] = [part for part in rest if part[0] < part[1]]
                return True
        return False

    def _move_to(self, next_seq: int, *, skipping_from: int, skipping_to: int) -> None:
        if skipping_from < skipping_to:
            self._interrupt()
            self.log.skipped = [*self.log.skipped, [skipping_from, skipping_to]][-MAX_SKIPPED_RANGES:]
        self.log.next_seq = next_seq

    def _wait(self, seq: int, data: bytes) -> bool:
        """Store a chunk that precedes an earlier one. At the limit the earlier one is not waited for any longer."""
        log = self.log
        if log.waiting.filter(seq=seq).exists():  # the lock of the log excludes a race
            return False
        sealed = seal(SEALED_LOG, data, context=waiting_context(log, seq))
        WaitingLogChunk.objects.create(step_log=log, seq=seq, size=len(data), sealed=sealed)
        log.waiting_bytes += len(data)
        log.waiting_count += 1
        self._consume_waiting(max_bytes=MAX_WAITING_BYTES)
        return True

    def _consume_waiting(self, *, max_bytes: int | None) -> None:
        """Take the chunks that wait for no other one any longer.

        Args:
            max_bytes: While more wait, the missing numbers before them are left out. None: wait for each.
        """
        log = self.log
        while log.waiting_count:
            first = log.waiting.order_by("seq").values_list("seq", flat=True).first()
            if first is None:
                raise AssertionError(f"{log}: {log.waiting_count} chunks should wait")
            is_over = max_bytes is not None and (
                log.waiting_bytes > max_bytes or log.waiting_count > MAX_WAITING_CHUNKS
            )
            if first > log.next_seq and not is_over:
                return
            self._move_to(first, skipping_from=log.next_seq, skipping_to=first)
            self._consume_run()

    def _consume_run(self) -> None:
        """Take some chunks that follow one another from the next number on."""
        log, taken = self.log, []
        for chunk in log.waiting.filter(seq__gte=log.next_seq).order_by("seq")[:WAITING_PER_QUERY]:
            if chunk.seq != log.next_seq:
                break
            self._consume(unseal(SEALED_LOG, bytes(chunk.sealed), context=waiting_context(log, chunk.seq)))
            if log.is_truncated:
                return
            log.next_seq += 1
            log.waiting_bytes -= chunk.size
            log.waiting_count -= 1
            taken.append(chunk.pk)
        WaitingLogChunk.objects.filter(pk__in=taken).delete()

    def _consume(self, data: bytes) -> None:
        self._emit(self._scrubber.feed(self._held, data))

    def _interrupt(self) -> None:
        """Mask the beginning of a secret that is held back: its end is not in the chunk that follows."""
        self._emit(self._scrubber.interrupt(self._held))

    def _emit(self, part: Scrubbed) -> None:
        """Add masked bytes up to the limit. What is held back at the limit is dropped: its end is not known."""
        if self.log.is_truncated:
            return
        self._held = part.held
        self.replacements += part.replacements
        room = MAX_STEP_LOG_BYTES - self.log.stored_bytes - self.output_bytes
        self._output.append(part.output[:room])
        if len(part.output) > room:
            self._output.append(TRUNCATED)
            self._held = HeldBytes()
            self.log.is_truncated = True
            self.log.waiting.all().delete()
            self.log.waiting_bytes = self.log.waiting_count = 0

    def _annotate(self, commands: list[WorkflowCommand]) -> None:
        log = self.log
        found = []
        for command in commands[: MAX_ANNOTATIONS - log.annotation_count]:
            annotation = StepAnnotation(
                job_id=log.job_id, step=log.step, number=log.annotation_count, level=command.level
            )
            # The texts are masked again: an escaped character may have separated two parts of a secret.
            annotation.message, annotation.title = self._masked(command.message), self._masked(command.title, 255)
            annotation.path = self._masked(command.path, 1024)
            annotation.start_line, annotation.end_line = command.start_line, command.end_line
            annotation.start_column, annotation.end_column = command.start_column, command.end_column
            found.append(annotation)
            log.annotation_count += 1
        if found:
            StepAnnotation.objects.bulk_create(found)

    def _masked(self, text: str, limit: int | None = None) -> str:
        return self._scrubber.scrub(text.encode()).decode(errors="replace")[:limit]


def waiting_context(log: StepLog, seq: int) -> str:
    """Return the place of a chunk that waits, with which it is sealed."""
    return f"{log.sealing_context}/{seq}"
