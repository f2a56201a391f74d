"""Keep all columns of an ended job on which evidence rests, and mark jobs that have announced an artifact.

Until now the trigger `guard_job` kept the state, the end, the run and the failure reason. Digests in the event history
cover the request and the result, too, so a change of them is found by `manage.py audit --chains`; now it is refused in
the first place. The mark lets the end of all jobs without artifacts read none.

Safe while processes of the former release write. They change none of these columns after the end of a job, and insert
jobs without the mark: they bind no artifacts. No statement rewrites or reads a table under a lock.

- Function of the trigger: replaced without a lock of the table.
- Column: ACCESS EXCLUSIVE on `runtime_jobs` for milliseconds. Its default is stored in the catalog, not in rows.

Reversing leaves the function, because the former release works with it.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl

# As in 0007, and: request, result and the head of the event history of an ended job stay.
GUARD = """
CREATE OR REPLACE FUNCTION guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE broken text;
BEGIN
    -- Nested: PostgreSQL prepares an expression once in each transaction that evaluates it, and few jobs have ended.
    IF OLD.finished_at IS NOT NULL THEN
        IF (NEW.state, NEW.finished_at, NEW.ingest_run_id, NEW.failure_reason, NEW.failure_class, NEW.failure_message,
            NEW.exit_code, NEW.cancel_reason, NEW.result, NEW.org_slug, NEW.job_type, NEW.spec, NEW.payload_digest,
            NEW.timeout_seconds, NEW.command_json, NEW.working_directory, NEW.allow_network, NEW.allow_exec,
            NEW.source_kind, NEW.repo_url, NEW.repo_owner, NEW.repo_name, NEW.git_ref, NEW.git_commit,
            NEW.pull_request_number, NEW.event_seq, NEW.event_head)
           IS DISTINCT FROM
           (OLD.state, OLD.finished_at, OLD.ingest_run_id, OLD.failure_reason, OLD.failure_class, OLD.failure_message,
            OLD.exit_code, OLD.cancel_reason, OLD.result, OLD.org_slug, OLD.job_type, OLD.spec, OLD.payload_digest,
            OLD.timeout_seconds, OLD.command_json, OLD.working_directory, OLD.allow_network, OLD.allow_exec,
            OLD.source_kind, OLD.repo_url, OLD.repo_owner, OLD.repo_name, OLD.git_ref, OLD.git_commit,
            OLD.pull_request_number, OLD.event_seq, OLD.event_head) THEN
            RAISE EXCEPTION 'job % is % and stays so', OLD.job_ulid, OLD.state USING ERRCODE = 'check_violation';
        END IF;
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


def keep_evidence(_apps: Any, schema_editor: Any) -> None:
    """Add the column, and replace the function of the trigger."""
    column = "ADD COLUMN IF NOT EXISTS has_artifacts boolean NOT NULL DEFAULT false"
    online_ddl.run_with_short_locks(schema_editor, [f"ALTER TABLE runtime_jobs {column}", GUARD])


def drop_column(_apps: Any, schema_editor: Any) -> None:
    """Drop the column."""
    online_ddl.run_with_short_locks(schema_editor, ["ALTER TABLE runtime_jobs DROP COLUMN IF EXISTS has_artifacts"])


class Migration(migrations.Migration):  # noqa: D101
    atomic = False

    dependencies = [("runtime_jobs", "0024_key_of_queued_jobs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(keep_evidence, drop_column)],
            state_operations=[
                migrations.AddField(
                    model_name="job",
                    name="has_artifacts",
                    field=models.BooleanField(
                        db_default=False, default=False, help_text="Its final event binds those that are complete."
                    ),
                ),
            ],
        ),
    ]
