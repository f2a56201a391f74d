"""The members of a lease that a worker needs to pull an image and to run it."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from orchestrator.images.tokens import new_pull_token
from orchestrator.services.claiming import Claimed
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.specs.oci import OCI, config_of, spec_uuid_of
from workers.models import HardwareSpec

_SPECS = PreparedQuery(HardwareSpec, "WHERE t.uuid = ANY (%s)")


def image_members(claims: Sequence[Claimed]) -> dict[str, dict[str, Any]]:
    """Return for each `oci` job, by its id, the machine of its hardware spec and a new pull token.

    Args:
        claims: The new leases.

    Returns:
        `machine`, null if the spec was deleted, and `pull_token`.
    """
    found = [claimed for claimed in claims if claimed.job.job_type == OCI]
    specs = {spec.uuid: spec for spec in _SPECS.all([spec_uuid_of(claimed.job) for claimed in found])} if found else {}
    return {
        claimed.job.job_ulid: {
            "machine": _machine(specs.get(spec_uuid_of(claimed.job))),
            "pull_token": new_pull_token(uuid_of(claimed.lease.worker_id), UUID(config_of(claimed.job)["project"])),
        }
        for claimed in found
    }


def _machine(spec: HardwareSpec | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    return {"cpu": spec.cpu, "memory": spec.memory, "disk": spec.disk, "network": spec.network}
