"""The operators' console: Django's admin, one file a noun. Read-only but for its buttons, and each button is a verb."""

from orchestrator.admin.audit_log import job_events, operator_events, webhook_deliveries
from orchestrator.admin.jobs import admin, batches, runs
from orchestrator.admin.limits import admin as limits_admin
from orchestrator.admin.limits import breakers, incidents
from orchestrator.admin.tenants import memberships, organizations, plans, projects, users
from orchestrator.admin.tokens import admin as tokens_admin
from orchestrator.admin.workers import admin as workers_admin
from orchestrator.admin.workers import leases, pools

__all__ = [
    "admin",
    "batches",
    "breakers",
    "incidents",
    "job_events",
    "leases",
    "limits_admin",
    "memberships",
    "operator_events",
    "organizations",
    "plans",
    "pools",
    "projects",
    "runs",
    "tokens_admin",
    "users",
    "webhook_deliveries",
    "workers_admin",
]
