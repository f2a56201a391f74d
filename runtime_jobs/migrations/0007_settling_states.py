"""Add the states `lost` and `processing`, with the policies and columns of a job that belong to them.

Also the grace after the time limit, which was a setting for all jobs, and what the billing of minutes needs.

Safe while processes of the former release write. No statement rewrites or reads a table under a lock.

- Columns: ACCESS EXCLUSIVE on `runtime_jobs` for milliseconds. Their defaults are stored in the catalog, not in rows.
- The function of the trigger `guard_job` is replaced without a lock of the table. It accepts all that it accepted.
- Index: CONCURRENTLY. Writes continue.

The defaults stay in the database: the former release inserts jobs without these columns. An existing job keeps the
grace of the setting. Reversing changes nothing, because the former release works on this schema.
"""

from typing import Any

from django.conf import settings
from django.db import migrations, models

from runtime_jobs import online_ddl

STATES = (
    ("blocked", "Blocked"), ("queued", "Queued"), ("leased", "Leased"), ("starting", "Starting"),
    ("checking_out", "Checking Out"), ("executing", "Executing"), ("uploading", "Uploading"), ("lost", "Lost"),
    ("processing", "Processing"), ("succeeded", "Succeeded"), ("failed", "Failed"), ("canceled", "Canceled"),
)
FAILURE_REASONS = (
    ("image_pull_failed", "Image Pull Failed"), ("checkout_failed", "Checkout Failed"),
    ("command_failed", "Command Failed"), ("command_not_found", "Command Not Found"),
    ("sandbox_apply_failed", "Sandbox Apply Failed"), ("sandbox_unavailable", "Sandbox Unavailable"),
    ("timed_out", "Timed Out"), ("out_of_memory", "Out Of Memory"), ("disk_full", "Disk Full"),
    ("worker_disk_full", "Worker Disk Full"), ("too_many_processes", "Too Many Processes"),
    ("trace_incomplete", "Trace Incomplete"), ("upload_failed", "Upload Failed"),
    ("upload_rejected", "Upload Rejected"), ("result_missing", "Result Missing"),
    ("result_unreadable", "Result Unreadable"), ("never_acknowledged", "Never Acknowledged"),
    ("lease_expired", "Lease Expired"), ("worker_lost", "Worker Lost"), ("worker_shutdown", "Worker Shutdown"),
    ("worker_error", "Worker Error"),
)
STATUS = {
    "blocked": "queued",
    "queued": "queued",
    "leased": "queued",
    "starting": "running",
    "checking_out": "running",
    "executing": "running",
    "uploading": "running",
    "lost": "running",
    "processing": "running",
    "succeeded": "uploaded",
    "failed": "failed",
    "canceled": "canceled",
}

# As in 0005, and: a lost job has the reason for which it will fail, and the time at which it will.
GUARD = """
CREATE OR REPLACE FUNCTION guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE broken text;
BEGIN
    IF OLD.finished_at IS NOT NULL AND (NEW.state, NEW.finished_at, NEW.ingest_run_id, NEW.failure_reason)
            IS DISTINCT FROM (OLD.state, OLD.finished_at, OLD.ingest_run_id, OLD.failure_reason) THEN
        RAISE EXCEPTION 'job % is % and stays so', OLD.job_ulid, OLD.state USING ERRCODE = 'check_violation';
    END IF;
    broken := CASE NEW.state
        WHEN 'succeeded' THEN CASE
            WHEN NEW.finished_at IS NULL THEN 'job_final_has_finished_at'
            WHEN NEW.needs_ingest AND NEW.ingest_run_id IS NULL THEN 'job_uploaded_has_run'
            WHEN NEW.failure_reason IS NOT NULL OR NEW.failure_class IS NOT NULL THEN 'job_failed_has_reason' END
        WHEN 'failed' THEN CASE
            WHEN NEW.finished_at IS NULL THEN 'job_final_has_finished_at'
            WHEN NEW.failure_reason IS NULL OR NEW.failure_class IS NULL THEN 'job_failed_has_reason'
            WHEN NEW.ingest_run_id IS NOT NULL THEN 'job_run_only_when_uploaded' END
        WHEN 'lost' THEN CASE
            WHEN NEW.finished_at IS NOT NULL THEN 'job_final_has_finished_at'
            WHEN NEW.failure_reason IS NULL OR NEW.failure_class IS NULL THEN 'job_failed_has_reason'
            WHEN NEW.late_result_at IS NULL OR NEW.cancel_requested_at IS NOT NULL THEN 'job_lost_has_window'
            WHEN NEW.ingest_run_id IS NOT NULL THEN 'job_run_only_when_uploaded' END
        ELSE CASE
            WHEN (NEW.finished_at IS NOT NULL) <> (NEW.state = 'canceled') THEN 'job_final_has_finished_at'
            WHEN NEW.failure_reason IS NOT NULL OR NEW.failure_class IS NOT NULL THEN 'job_failed_has_reason'
            WHEN NEW.ingest_run_id IS NOT NULL THEN 'job_run_only_when_uploaded'
            WHEN NEW.state = 'canceled' AND NEW.cancel_requested_at IS NULL THEN 'job_canceled_was_requested'
            WHEN NEW.state NOT IN ('blocked', 'queued', 'leased', 'starting', 'checking_out', 'executing', 'uploading',
                                   'processing', 'canceled') THEN 'job_state_known' END
    END;
    broken := CASE WHEN broken IS NOT NULL THEN broken
        WHEN NEW.requeue_count > NEW.max_requeues THEN 'job_requeues_bounded'
        WHEN NEW.automatic_retries_spent > NEW.automatic_retries THEN 'job_retries_bounded'
        WHEN least(NEW.requeue_count, NEW.max_requeues, NEW.release_count, NEW.automatic_retries_spent,
                   NEW.automatic_retries, NEW.attempt, NEW.timeout_seconds, NEW.lease_ttl_seconds,
                   NEW.heartbeat_interval_seconds, NEW.acknowledge_within_seconds, NEW.late_result_seconds,
                   NEW.timeout_grace_seconds, NEW.last_billed_minute) < 0 THEN 'job_counts_from_0' END;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'new row for relation "%" violates check constraint "%"', TG_TABLE_NAME, broken
            USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME;
    END IF;
    NEW.status := CASE NEW.state
        WHEN 'succeeded' THEN CASE WHEN NEW.needs_ingest THEN 'uploaded' ELSE 'succeeded' END
        WHEN 'failed' THEN 'failed'
        WHEN 'canceled' THEN 'canceled'
        WHEN 'blocked' THEN 'queued'
        WHEN 'queued' THEN 'queued'
        WHEN 'leased' THEN 'queued'
        ELSE 'running' END;
    RETURN NEW;
END $$
"""


def add_columns(_apps: Any, schema_editor: Any) -> None:
    """Add the columns with their defaults, then let the trigger check them."""
    columns = (
        "late_result_seconds integer NOT NULL DEFAULT 0",
        "needs_processing boolean NOT NULL DEFAULT false",
        f"timeout_grace_seconds integer NOT NULL DEFAULT {int(settings.TIMEOUT_GRACE_SECONDS)}",
        "late_result_at timestamptz",
        "is_metered boolean NOT NULL DEFAULT false",
        "last_billed_minute integer",
    )
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {column}" for column in columns)
    online_ddl.run_with_short_locks(schema_editor, [f"ALTER TABLE runtime_jobs {added}", GUARD])


def create_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index of the jobs that settle; writes continue."""
    online_ddl.replace_index(
        schema_editor,
        "jobs_settling",
        "runtime_jobs (state, late_result_at) WHERE state IN ('lost', 'processing')",
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0006_jobs_by_creation")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunPython(add_columns, migrations.RunPython.noop),
                migrations.RunPython(create_index, migrations.RunPython.noop),
            ],
            state_operations=[
                migrations.AddField(
                    "job",
                    "late_result_seconds",
                    models.PositiveIntegerField(
                        default=0, help_text="A result counts for so long after the lease ended without one."
                    ),
                ),
                migrations.AddField(
                    "job",
                    "needs_processing",
                    models.BooleanField(default=False, help_text="Its result is read before it succeeds."),
                ),
                migrations.AddField(
                    "job",
                    "timeout_grace_seconds",
                    models.PositiveIntegerField(default=60, help_text="Beyond its time limit."),
                ),
                migrations.AddField(
                    "job",
                    "late_result_at",
                    models.DateTimeField(help_text="When a lost job fails without a late result.", null=True),
                ),
                migrations.AddField(
                    "job", "is_metered", models.BooleanField(default=False, help_text="Its minutes are billed.")
                ),
                migrations.AddField(
                    "job",
                    "last_billed_minute",
                    models.IntegerField(help_text="Minutes of this attempt that were billed.", null=True),
                ),
                migrations.AlterField(
                    "job",
                    "state",
                    models.CharField(choices=STATES, default="queued", editable=False, max_length=20),
                ),
                migrations.AlterField(
                    "job",
                    "status",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Case(
                            models.When(needs_ingest=False, state="succeeded", then=models.Value("succeeded")),
                            *(models.When(state=state, then=models.Value(word)) for state, word in STATUS.items()),
                        ),
                        output_field=models.CharField(max_length=20),
                    ),
                ),
                migrations.AlterField(
                    "job",
                    "failure_reason",
                    models.CharField(choices=FAILURE_REASONS, max_length=30, null=True),
                ),
                migrations.AddIndex(
                    "job",
                    models.Index(
                        condition=models.Q(("state__in", ("lost", "processing"))),
                        fields=["state", "late_result_at"],
                        name="jobs_settling",
                    ),
                ),
            ],
        ),
    ]
