"""The output of jobs whose result is read: a worker stores it, and its final message names it."""

from dataclasses import replace
from uuid import UUID

from leases.errors import StaleLease
from leases.fencing import newest_holding, require_valid_lease
from leases.models import Lease
from orchestrator.http.errors.problems import ApiError
from orchestrator.results.outputs import OUTPUT_MEMBER, output_name, read_output
from orchestrator.results.processing import find_unread, read_small, store_output
from orchestrator.services.batch_calls import Messages, WorkerMessage
from orchestrator.services.job_end import CompleteMessage
from runtime_jobs.errors import Invalid
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, config_of
from workers.models import Worker

_TYPES_WITH_OUTPUT = [name for name, job_type in JOB_TYPES.items() if job_type.needs_processing]


def leased_job(lease_ulid: str, worker: Worker) -> Job:
    """Return the job of a valid lease of this worker, whose result is an output.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Invalid: The type of the job has no output.
    """
    lease = Lease.objects.filter(lease_ulid=lease_ulid, worker=worker).only("job").first()
    holding = None if lease is None else newest_holding(job_ulid=lease.job_id, worker=worker)
    if holding is None or holding.lease.lease_ulid != lease_ulid:
        raise StaleLease("unknown_lease")
    require_valid_lease(holding)
    if holding.job.job_type not in _TYPES_WITH_OUTPUT:
        raise Invalid({"lease_id": [f"Jobs of type {holding.job.job_type} have no output."]})
    return holding.job


def store(job: Job, lease_ulid: str, body: bytes) -> str:
    """Store the output of a leased job, and return its name. The same lease again replaces it.

    Raises:
        ApiError: 503 `overloaded`; the store has failed.
    """
    result = store_output(job, body, sender=fingerprint(lease_ulid))
    if result is None:
        raise ApiError(503, "overloaded", "The output cannot be stored now.")
    return result[OUTPUT_MEMBER]


def with_read_results(messages: Messages[CompleteMessage]) -> Messages[CompleteMessage]:
    """Read small outputs that the messages name, so that one statement stores the result and ends the job.

    A larger one is read while the job is `processing`.
    """
    named = {name: message for name, message in messages.items() if OUTPUT_MEMBER in (message.content.result or {})}
    if not named:
        return messages
    held = Lease.objects.open().filter(lease_ulid__in=named, job__job_type__in=_TYPES_WITH_OUTPUT)
    held = held.only("lease_ulid", "job", "worker")
    leases = [lease for lease in held if lease.worker_id == named[lease.lease_ulid].worker.worker_id]
    read = {lease.lease_ulid: _with_read_result(named[lease.lease_ulid], lease.job_id) for lease in leases}
    return {**messages, **read}


def _with_read_result(message: WorkerMessage[CompleteMessage], job_ulid: str) -> WorkerMessage[CompleteMessage]:
    try:
        unread = find_unread(job_ulid)
        unread.job.result = message.content.result
        name = output_name(unread.job)
        body = read_output(UUID(config_of(unread.job)["project"]), name) if name else None
    except (Job.DoesNotExist, OSError):
        return message  # the operation refuses it, or the result is read later
    read_result = None if body is None else read_small(unread, body)
    return replace(message, content=replace(message.content, read_result=read_result))
