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
        #: Days that jobs are kept, counted from their end, with their events, leases, artifacts and logs; batches. 0
        #: here and in the other rows of this table: for ever.
        "jobs": env.int("RETENTION_JOBS_DAYS", default=365),
        #: The same for jobs of workflow runs, with their logs and artifacts. A pinned run is kept; so are its
        #: artifacts.
        "workflow_runs": env.int("RETENTION_WORKFLOW_RUNS_DAYS", default=365),
        #: Parts of the log of a workflow step that could not be stored as an object, counted from its end.
        "step_chunks": env.int("RETENTION_STEP_CHUNKS_DAYS", default=7),
        #: Events that may have started workflow runs.
        "workflow_triggers": env.int("RETENTION_WORKFLOW_TRIGGERS_DAYS", default=30),
        #: Diagnostics of wrong workflow files.
        "rejected_workflows": env.int("RETENTION_REJECTED_WORKFLOWS_DAYS", default=90),
        #: Stored artifacts, counted from their announcement, with their objects.
        "artifacts": env.int("RETENTION_ARTIFACTS_DAYS", default=90),
        #: Cache entries, counted from their last use, with their objects.
        "caches": env.int("RETENTION_CACHES_DAYS", default=7),
        #: Logs of other jobs, as rows or objects, counted from the end of the job. The job stays, its log is empty.
        "logs": env.int("RETENTION_LOGS_DAYS", default=90),
        #: Runs of the reference ingest, counted from their arrival.
        "runs": env.int("RETENTION_RUNS_DAYS", default=365),
        #: Idempotency keys.
        "idempotency_keys": env.int("RETENTION_IDEMPOTENCY_KEYS_DAYS", default=2),
        #: Webhook deliveries that GitHub has sent; it redelivers for 3 days.
        "webhook_deliveries": env.int("RETENTION_WEBHOOK_DELIVERIES_DAYS", default=30),
        #: Deliveries to webhooks and by mail, counted from their creation, with their tries; a delivery that was sent
        #: again stays with the tries of that time.
        "deliveries": env.int("RETENTION_DELIVERIES_DAYS", default=30),
        #: Records of the times of schedules.
        "schedule_ticks": env.int("RETENTION_SCHEDULE_TICKS_DAYS", default=30),
        #: Bulk actions with their targets, counted from their end.
        "bulk_actions": env.int("RETENTION_BULK_ACTIONS_DAYS", default=90),
        #: Incidents, counted from when they were resolved.
        "incidents": env.int("RETENTION_INCIDENTS_DAYS", default=365),
        #: Django's history of changes in the admin (`django_admin_log`).
        "admin_log": env.int("RETENTION_ADMIN_LOG_DAYS", default=365),
        #: The audit log of operators. Laws and contracts differ, so it is kept until you decide otherwise.
        "operator_events": env.int("RETENTION_OPERATOR_EVENTS_DAYS", default=0),
    }
