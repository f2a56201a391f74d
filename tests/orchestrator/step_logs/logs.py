"""Steps with logs for tests: created and appended to as the runner protocol does."""

from django.db import connection

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.step_logs import step_log_writes
from orchestrator.step_logs.step_log_reads import read_step_log
from runtime_jobs.models import JobStep, LogChunk, StepAnnotation, StepLog, WaitingLogChunk
from runtime_jobs.states import StepStatus
from tests.factories import WorkerFactory, claimed, submitted_steps


def new_steps(count=1, **changes):
    """Steps of a job that runs."""
    submitted_steps(**changes)
    job = claimed(WorkerFactory(), job_types=("steps",)).job
    return [JobStep.objects.create(job=job, index=index, run=f"echo {index}") for index in range(count)]


@operation
def append(uow: UnitOfWork, step, seq, data, masks=()):
    return step_log_writes.append_step_log(uow, step=step, seq=seq, data=data, masks=masks)


@operation
def close(uow: UnitOfWork, step):
    step_log_writes.close_step_log(uow, step=step)


def end(step, now):
    """End a step as its protocol does: its status and its log."""
    JobStep.objects.filter(pk=step.pk).update(
        status=StepStatus.COMPLETED, conclusion="success", started_at=now, completed_at=now
    )
    step.refresh_from_db()
    close(step)


def text_of(step):
    return b"".join(read_step_log(step))


def log_of(step):
    return StepLog.objects.get(job_id=step.job_id, step=step.index)


def stored_bytes_of_all_rows():
    """Everything that the tables of logs have, as a dump would contain it."""
    columns = [
        *LogChunk.objects.order_by("step", "seq").values_list("chunk", flat=True),
        *StepLog.objects.values_list("held", flat=True),
        *StepLog.objects.values_list("open_line", flat=True),
        *WaitingLogChunk.objects.values_list("sealed", flat=True),
        *[text.encode() for row in StepAnnotation.objects.values_list("message", "title", "path") for text in row],
    ]
    return b"|".join(bytes(column) for column in columns if column is not None)


def row_version(model, **key):
    """The version of a row: another one after each write."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT xmin::text, ctid::text FROM {model._meta.db_table} WHERE id = %s", [model.objects.get(**key).pk]
        )
        return cursor.fetchone()
