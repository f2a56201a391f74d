"""The operators' console: Django's admin, one file a noun. Read-only but for its buttons, and each button is a verb."""

from orchestrator.admin import (
    batches,
    deliveries,
    job_events,
    jobs,
    leases,
    memberships,
    operator_events,
    organizations,
    people,
    plans,
    pools,
    projects,
    runs,
    tokens,
    workers,
)

__all__ = [
    "batches",
    "deliveries",
    "job_events",
    "jobs",
    "leases",
    "memberships",
    "operator_events",
    "organizations",
    "people",
    "plans",
    "pools",
    "projects",
    "runs",
    "tokens",
    "workers",
]
