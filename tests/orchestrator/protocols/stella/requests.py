"""Requests of clients and workers of this API, with what they usually contain."""

from typing import Any
from uuid import UUID

from orchestrator.services import job_end
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job
from runtime_jobs.specs import PAYLOAD_TYPES
from tests.factories import claimed

SCAN: dict[str, Any] = {"jobType": "scan", "payload": {"imageRef": "nginx:latest", "options": {}}}
MISSING = "01890a5d-ac96-774b-bcce-b302099a8057"


def ok(response: Any, status: int = 200) -> Any:
    assert response.status_code == status, response.content
    return response.json()


def submit(caller: Any, **changes: Any) -> Any:
    """A new job, as the API serializes it."""
    return ok(caller.post("/api/jobs", SCAN | changes), 201)


def row_of(shown: dict[str, Any]) -> Job:
    """The newest attempt of a serialized job."""
    root = public_id_of("rtj", UUID(shown["jobId"]))
    return Job.objects.filter(root_job_ulid=root).latest("attempt")


def claim(worker: Any, **options: Any) -> Any:
    return claimed(worker, job_types=PAYLOAD_TYPES, **options)


def complete(found: Any, **outcome: Any) -> Job:
    return job_end.complete(lease_ulid=found.lease.lease_ulid, worker=found.lease.worker, result=outcome or None)


def fail(found: Any, reason: str = "command_failed") -> Job:
    return job_end.fail(lease_ulid=found.lease.lease_ulid, worker=found.lease.worker, reason=reason)


def listed(caller: Any, query: str = "") -> list[str]:
    """The ids of a list, in order."""
    return [row["jobId"] for row in ok(caller.get(f"/api/jobs{query}"))["results"]]
