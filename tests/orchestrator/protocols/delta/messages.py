"""The recorded messages, about a lease of ours."""

import json
from pathlib import Path
from typing import Any

from leases.models import Lease
from orchestrator.protocols.delta.runners.leases import claim_for_runner
from runtime_jobs.models import Job, JobEvent
from tests.api_client import Caller
from workers.models import Worker

RECORDED = Path(__file__).parent / "recorded"
INTERNAL = "/api/v1/internal"
PATHS = {
    "LeaseRequest": f"{INTERNAL}/lease",
    "AckLease": f"{INTERNAL}/ack-lease",
    "Heartbeat": f"{INTERNAL}/heartbeat",
    "Complete": f"{INTERNAL}/complete",
    "CancelAck": f"{INTERNAL}/cancel-ack",
}
# What a runner says of a lease, one message of each kind.
WORDS = (
    "runner_ack_lease",
    "runner_heartbeat",
    "runner_complete_succeeded",
    "runner_complete_failed",
    "runner_cancel_ack",
)


def recorded(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text())


def about(name: str, *, lease_id: str, job_id: str, **changes: Any) -> dict[str, Any]:
    """The message with our ids; it names a job only where its original does. A change to None leaves the field out."""
    message = recorded(name) | {"lease_id": lease_id}
    if "job_id" in message:
        message["job_id"] = job_id
    return {field: value for field, value in (message | changes).items() if value is not None}


class Held:
    """The next `steps` job, on a lease of this worker, and one who speaks about it."""

    def __init__(self, caller: Caller, worker: Worker) -> None:
        claimed = claim_for_runner(worker)
        assert claimed is not None
        self.caller, self.worker, self.claimed = caller, worker, claimed

    @property
    def job(self) -> Job:
        return Job.objects.get(pk=self.claimed.job.pk)

    @property
    def lease(self) -> Lease:
        return Lease.objects.get(pk=self.claimed.lease.pk)

    @property
    def event_types(self) -> list[str]:
        return list(JobEvent.objects.of(self.job.job_ulid).values_list("event_type", flat=True))

    def message(self, name: str, **changes: Any) -> dict[str, Any]:
        named = {"lease_id": self.claimed.lease.lease_ulid, "job_id": self.claimed.job.root_job_ulid}
        return about(name, **(named | changes))

    def say(self, name: str, *, actor: Caller | None = None, **changes: Any) -> Any:
        message = self.message(name, **changes)
        return (actor or self.caller).post(PATHS[recorded(name)["type"]], message)


def error_of(response: Any, status: int, code: str) -> dict[str, Any]:
    """The error of a refusal in the documents' envelope, which it must be."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    error = response.json()["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert isinstance(error["details"], dict)
    return error
