"""The content of a heartbeat: what a runner reports of itself, and the bounds of it (contract 2.1)."""

from dataclasses import dataclass
from typing import Any, Final

from orchestrator.protocols.shithub.errors import bad_request
from orchestrator.services.actions_runners import MAX_CAPACITY, normalize_labels
from workers.models import Worker

MAX_TEXT_BYTES: Final = 255


@dataclass(frozen=True)
class HeartbeatReport:
    """The content of a heartbeat. None: the stored value stays.

    Attributes:
        labels: Its labels.
        capacity: The maximum number of its jobs.
        host_name: The name of its machine.
        version: Its version.
        active_job_ids: The jobs that it executes.
    """

    labels: list[str] | None = None
    capacity: int | None = None
    host_name: str | None = None
    version: str | None = None
    active_job_ids: list[int] | None = None

    @property
    def is_of_later_generation(self) -> bool:
        """Whether the runner is not one of the first generation, which evaluates no condition (contract, section 0)."""
        return self.host_name is not None or self.version is not None or self.active_job_ids is not None

    @classmethod
    def of(cls, data: dict[str, Any]) -> "HeartbeatReport":
        """Return the report in a validated body.

        Raises:
            Invalid: A label is malformed.
        """
        labels = data["labels"]
        return cls(
            labels=None if labels is None else normalize_labels(labels),
            capacity=data["capacity"] or None,
            host_name=_cut(data["host_name"]),
            version=_cut(data["version"]),
            active_job_ids=data["active_job_ids"],
        )


def _cut(text: str | None) -> str | None:
    """Return a text without blanks around it and of at most `MAX_TEXT_BYTES` bytes; None for an empty one."""
    if text is None:
        return None
    return text.strip().encode()[:MAX_TEXT_BYTES].decode(errors="ignore") or None


def require_bounds(report: HeartbeatReport, runner_id: int) -> None:
    """Check the capacity and the list of active jobs.

    Args:
        report: The report.
        runner_id: The key of the runner, whose stored capacity counts if the report has none.

    Raises:
        ApiError: 400; a value is out of bounds.
    """
    if report.capacity is not None and not 1 <= report.capacity <= MAX_CAPACITY:
        raise bad_request(f"capacity: Must be from 1 to {MAX_CAPACITY}, or 0 for the stored one.")
    active = report.active_job_ids
    if active is None:
        return
    capacity = report.capacity or Worker.objects.values_list("capacity", flat=True).get(pk=runner_id)
    if len(active) > capacity:
        raise bad_request(f"active_job_ids: At most {capacity} jobs are allowed, the capacity of the runner.")
    if len(set(active)) != len(active) or any(job_id < 1 for job_id in active):
        raise bad_request("active_job_ids: Must be different positive numbers.")
