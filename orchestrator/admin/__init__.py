"""The operators' pages: Django's admin, one file for each resource. Importing this package registers all of them."""

from orchestrator.admin import deliveries, evidence, housekeeping, notification_rules, webhooks
from orchestrator.admin.audit_log import job_events, operator_actions, webhook_deliveries
from orchestrator.admin.jobs import admin as jobs_admin
from orchestrator.admin.jobs import batches, replays, reports, runs, stored_objects, workflow_runs
from orchestrator.admin.limits import admin as limits_admin
from orchestrator.admin.limits import breakers, incidents, quotas
from orchestrator.admin.tenants import (
    api_tokens,
    members,
    organizations,
    personal_keys,
    plans,
    projects,
    repositories,
    secrets,
    usage,
    users,
)
from orchestrator.admin.workers import actions_runners, hardware_specs, leases, pools, runners
from orchestrator.admin.workers import admin as workers_admin

__all__ = [
    "actions_runners",
    "api_tokens",
    "batches",
    "breakers",
    "deliveries",
    "evidence",
    "hardware_specs",
    "housekeeping",
    "incidents",
    "job_events",
    "jobs_admin",
    "leases",
    "limits_admin",
    "members",
    "notification_rules",
    "operator_actions",
    "organizations",
    "personal_keys",
    "plans",
    "pools",
    "projects",
    "quotas",
    "replays",
    "reports",
    "repositories",
    "runners",
    "runs",
    "secrets",
    "stored_objects",
    "usage",
    "users",
    "webhook_deliveries",
    "webhooks",
    "workers_admin",
    "workflow_runs",
]
