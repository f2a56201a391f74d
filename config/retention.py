"""Reads how long records are kept: periods in days, after which `orchestrator/maintenance/pruning.py` deletes them."""

from config.env import Env


def retention_days(env: Env) -> dict[str, int]:
    """Read the period of each kind of record.

    Args:
        env: The environment.

    Returns:
        Days by kind of record; 0: for ever. `manage.py prune --dry-run` counts what is older.
    """
    return {
        # Since the end of the job; with its events, leases, artifacts and the rest of its log.
        "jobs": env.int("RETENTION_JOBS_DAYS", default=365),
        # The same for jobs of workflow runs; a pinned run is kept.
        "workflow_runs": env.int("RETENTION_WORKFLOW_RUNS_DAYS", default=365),
        # Since the end of a workflow step: parts of its log that could not be stored as an object.
        "step_chunks": env.int("RETENTION_STEP_CHUNKS_DAYS", default=7),
        "workflow_triggers": env.int("RETENTION_WORKFLOW_TRIGGERS_DAYS", default=30),  # events, since received
        "rejected_workflows": env.int("RETENTION_REJECTED_WORKFLOWS_DAYS", default=90),  # diagnostics of wrong files
        "artifacts": env.int("RETENTION_ARTIFACTS_DAYS", default=90),  # since they were announced
        "caches": env.int("RETENTION_CACHES_DAYS", default=7),  # since they were last used
        "logs": env.int("RETENTION_LOGS_DAYS", default=90),
        "runs": env.int("RETENTION_RUNS_DAYS", default=365),  # of the reference ingest
        "idempotency_keys": env.int("RETENTION_IDEMPOTENCY_KEYS_DAYS", default=2),
        "webhook_deliveries": env.int("RETENTION_WEBHOOK_DELIVERIES_DAYS", default=30),  # GitHub redelivers for 3 days
        # Deliveries of outgoing webhooks and mails with all their tries, since they were created.
        "deliveries": env.int("RETENTION_DELIVERIES_DAYS", default=30),
        "schedule_ticks": env.int("RETENTION_SCHEDULE_TICKS_DAYS", default=30),  # times of schedules
        "bulk_actions": env.int("RETENTION_BULK_ACTIONS_DAYS", default=90),  # with their targets, since they ended
        "incidents": env.int("RETENTION_INCIDENTS_DAYS", default=365),  # since they were resolved
        "admin_log": env.int("RETENTION_ADMIN_LOG_DAYS", default=365),  # Django's history of changes in the admin
        # The audit log of operators: laws and contracts differ, so an operator decides when it may be deleted.
        "operator_events": env.int("RETENTION_OPERATOR_EVENTS_DAYS", default=0),
    }
