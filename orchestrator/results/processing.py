"""Ends jobs whose result has arrived: stores the output, reads it, and settles the job with its metrics."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, OperationalError, connection, transaction

from orchestrator.core.unit_of_work import is_retryable
from orchestrator.results import names
from orchestrator.results.adapters import AdapterName, Average, Results
from orchestrator.results.folding import Fold
from orchestrator.results.models import Metric, Report, ReportResult
from orchestrator.results.outputs import output_name, read_output, result_naming, write_output
from orchestrator.results.reading import ReadingSettings, UnreadableResult, read_body
from orchestrator.services import late_results
from orchestrator.services.job_end import ReadResult
from runtime_jobs.db_errors import is_connection_lost, is_database_unavailable
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, Project
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.specs import config_of
from runtime_jobs.states import FailureReason, JobState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnreadJob:
    """A job with the report that its result is for. Both the report and its project may have been deleted."""

    job: Job
    report: Report | None
    project: Project | None


_JOB = PreparedQuery(
    UnreadJob,
    """LEFT JOIN result_reports report ON report.job_ulid = t.job_ulid
       LEFT JOIN runtime_jobs_project project ON project.id = report.project_id WHERE t.job_ulid = %s""",
)
SMALL_OUTPUT_BYTES = 64 << 10  # an output up to this is read before the message that brings it is stored
MAX_READERS = 2  # results that a process reads at a time: each may need several times the size of its output
MAX_DURATION = 2**31 - 1
# A result that cannot be read for so long never can: its job fails.
READING_PATIENCE = timedelta(hours=1)
_readers = threading.BoundedSemaphore(MAX_READERS)


def find_unread(job_ulid: str) -> UnreadJob:
    """Return a job with its report.

    Raises:
        Job.DoesNotExist: Retention has deleted the job.
    """
    found = _JOB.first(job_ulid)
    if found is None:
        raise Job.DoesNotExist
    if found.report is not None and found.project is not None:
        found.report.project = found.project
    return found


def store_output(job: Job, body: bytes, *, sender: str | None = None) -> dict[str, str] | None:
    """Store the output of a job, before the operation that reports its end.

    Args:
        job: A job of type `oci`.
        body: The iterations as `outputs.encode_output` returns them.
        sender: See `outputs.write_output`.

    Returns:
        The result to report, which names the output, or None if the store has failed.
    """
    name = write_output(_project_of(job), uuid_of(job.job_ulid), body, sender=sender)
    return None if name is None else result_naming(name)


def read_small(found: UnreadJob, body: bytes) -> ReadResult | None:
    """Read an output before the message that brings it is stored, so that one statement stores both.

    Names of a message that does not count remain without metrics.

    Args:
        found: The job, which executes.
        body: The output.

    Returns:
        None if the output is large, or cannot be read now. `process` then reads it while the job is `processing`.
    """
    if len(body) > SMALL_OUTPUT_BYTES:
        return None
    try:
        return _read(found, body)
    except Exception as error:
        if is_database_unavailable(error):
            raise
        log.exception("the result of job %s is read later", found.job.job_ulid)
        return None


def process(job: Job, body: bytes | None = None) -> None:
    """Read the result of a job that is `processing`, and settle the job with its metrics.

    Two processes may read the same result: `settle` stores the first outcome and ignores the second one.

    Args:
        job: The job after `complete`.
        body: The output, if the caller still has it. So a store that fails costs the job only its output.

    Raises:
        OSError: The store cannot be read now, or has lost the output. The job stays `processing` and is read again.
    """
    if body is None and (name := output_name(job)) is not None:
        body = read_output(_project_of(job), name)
        if body is None:  # it was stored: the folder is that of another machine, or not mounted
            raise FileNotFoundError(f"The store has no output {name}.")
    with _readers:
        read_result = _read(find_unread(job.job_ulid), body)
    try:
        late_results.settle(job_ulid=job.job_ulid, read_result=read_result)
    except IntegrityError:
        names.forget_names()
        raise


def read_again(job: Job, *, now: datetime | None = None) -> None:
    """Read the stored output of a job that has been `processing` for long: the process that began has ended.

    Any error but a lost connection leaves the job for a later attempt until `READING_PATIENCE` has passed. Then the job
    fails: without an end its dependents would wait for ever, and no cancel would be accepted.

    Args:
        job: The job.

    Raises:
        Exception: The result cannot be read now, or the connection to the database is lost.
    """
    if job.state != JobState.PROCESSING:
        return
    try:
        process(job)
    except Exception as error:
        if is_connection_lost(error) or (now or database_now()) - job.phase_at < READING_PATIENCE:
            raise
        log.exception("the result of job %s cannot be read", job.job_ulid)
        is_missing = isinstance(error, OSError)
        subject = "output" if is_missing else "result"
        reason = FailureReason.RESULT_MISSING if is_missing else FailureReason.RESULT_UNREADABLE
        message = f"The {subject} could not be read for {READING_PATIENCE}: {type(error).__name__}."
        late_results.settle(job_ulid=job.job_ulid, read_result=ReadResult(reason, message))


def store_results(report: Report, iterations: Sequence[Results]) -> None:
    """Store the results of a report without a job, which the client sent with it.

    Args:
        report: A report that has no results yet.
        iterations: What `reading.read_texts` returned.

    Raises:
        UnreadableResult: The results name a resource that does not exist, or too many new ones.
    """
    metrics = build_metrics(report, iterations)
    outcome = ReportResult(
        report=report, start_time=report.start_time, end_time=report.end_time, metric_count=len(metrics)
    )
    with transaction.atomic():
        Metric.objects.bulk_create(metrics)
        outcome.save(force_insert=True)


def build_metrics(report: Report, iterations: Sequence[Results]) -> list[Metric]:
    """Return the rows of these results. New benchmarks and measures are stored at once, and only those with metrics.

    A deadlock ends the transaction. If it is only that of the names, they are stored by a second one.

    Raises:
        UnreadableResult: The results name a benchmark or a measure by an unknown UUID, or too many new ones.
    """
    try:
        benchmarks, measures = _store_names(report.project, iterations)
    except OperationalError as error:
        if connection.in_atomic_block or not is_retryable(error):
            raise
        benchmarks, measures = _store_names(report.project, iterations)
    # Two keys may name the same resource, by its slug and by its name. The last one counts.
    rows: dict[tuple[int, int, int], Metric] = {}
    for iteration, results in enumerate(iterations):
        for benchmark, metrics in results.items():
            for measure, metric in metrics.items():
                key = (iteration, benchmarks[benchmark], measures[measure])
                rows[key] = Metric(
                    report=report,
                    iteration=iteration,
                    benchmark_id=key[1],
                    measure_id=key[2],
                    value=metric.value,
                    lower_value=metric.lower,
                    upper_value=metric.upper,
                )
    return list(rows.values())


def _store_names(project: Project, iterations: Sequence[Results]) -> tuple[dict[str, int], dict[str, int]]:
    """Find or create the benchmarks and the measures of these results, and return the keys of both."""
    try:
        benchmarks = names.benchmark_keys(
            project, {name for results in iterations for name, metrics in results.items() if metrics}
        )
        measures = names.measure_keys(
            project, {name for results in iterations for metrics in results.values() for name in metrics}
        )
    except (names.UnknownResource, names.ResourceLimitReached) as error:
        raise UnreadableResult(str(error)) from None
    return benchmarks, measures


def _read(found: UnreadJob, body: bytes | None) -> ReadResult:
    job, report = found.job, found.report
    if body is None:
        return _failure(report, FailureReason.RESULT_MISSING, "The store has no output of the job.")
    try:
        iterations = read_body(body, _settings(job, report))
        if report is None:
            # The report was deleted, or in the database its project.
            log.warning("job %s has no report any more: its metrics are not stored", job.job_ulid)
            return ReadResult()
        metrics = build_metrics(report, iterations)
        backdate = config_of(job).get("backdate")
        _report_result(job, report, len(metrics), backdate)  # there may be no such date
        return ReadResult(rows=lambda ended: [*metrics, _report_result(ended, report, len(metrics), backdate)])
    except UnreadableResult as error:
        return _failure(report, FailureReason.RESULT_UNREADABLE, str(error))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        # A bug of an adapter must not leave the job `processing` for ever.
        log.exception("the result of job %s cannot be read", job.job_ulid)
        return _failure(report, FailureReason.RESULT_UNREADABLE, "The adapter failed.")


def _failure(report: Report | None, reason: FailureReason, message: str) -> ReadResult:
    rows = [] if report is None else [ReportResult(report=report, error=message)]
    return ReadResult(reason, message, lambda _: rows)


def _report_result(job: Job, report: Report, metric_count: int, backdate: str | None) -> ReportResult:
    """Return the times of the report: the execution until its result arrived, or as long since the backdate."""
    ended = job.phase_at  # the job became `processing`
    started = job.executing_at or ended
    begin = datetime.fromisoformat(backdate) if backdate else started
    return ReportResult(
        report=report,
        start_time=begin,
        end_time=begin + (ended - started),
        duration_seconds=min(max(0, int(ended.timestamp()) - int(started.timestamp())), MAX_DURATION),
        metric_count=metric_count,
    )


def _settings(job: Job, report: Report | None) -> ReadingSettings:
    """Return the adapter of the report, with average and fold of the job's configuration."""
    config = config_of(job)
    return ReadingSettings(
        adapter=report.adapter if report is not None else AdapterName.MAGIC,
        average=Average(config["average"]) if config.get("average") else None,
        fold=Fold(config["fold"]) if config.get("fold") else None,
    )


def _project_of(job: Job) -> UUID:
    """Return the project of the job's configuration, under which its output is stored."""
    return UUID(config_of(job)["project"])
