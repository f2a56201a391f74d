"""Renders the claimed job of contract 3.3, which the channel and the long poll send to a runner."""

from typing import Any
from uuid import UUID

from orchestrator.images.tokens import new_pull_token
from orchestrator.protocols.bencher.specs.wire import spec_document
from orchestrator.protocols.bencher.wire import timestamp
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.specs.oci import config_of, spec_uuid_of
from workers.models import Worker
from workers.registry.models import HardwareSpec

_SPEC = PreparedQuery(HardwareSpec, "WHERE t.uuid = %s")


def serialize_claimed_job(job: Job, worker: Worker) -> dict[str, Any]:
    """Return the claimed job with a new pull token.

    Args:
        job: A job of type `oci`.
        worker: The runner that has claimed the job.

    Raises:
        KeyError: The order lacks a member.
        ValueError: A member of the order is no UUID.
        HardwareSpec.DoesNotExist: The hardware spec was deleted.
    """
    config = config_of(job)
    spec = _SPEC.first(spec_uuid_of(job))
    if spec is None:
        raise HardwareSpec.DoesNotExist("The hardware spec of the order was deleted.")
    return {
        "uuid": str(uuid_of(job.job_ulid)),
        "spec": spec_document(spec),
        "config": config,
        "oci_token": new_pull_token(worker.uuid, UUID(config["project"])),
        "timeout": config["timeout"],
        "created": timestamp(job.created_at),
    }
