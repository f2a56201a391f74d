"""Reduce what a job and an event cost per write: fewer indexes, one trigger in place of 18 CHECKs, no foreign key.

Safe while processes of commit 8637103 and of this release write. No statement rewrites or reads a table under a lock.

- Constraints, generated column and trigger of `runtime_jobs`: ACCESS EXCLUSIVE on that table for milliseconds.
- Foreign key of events: ACCESS EXCLUSIVE on jobs and events for milliseconds.
- Both wait for their locks for half a second at a time and then let others proceed (`runtime_jobs.online_ddl`).
- Indexes: CONCURRENTLY. Writes continue; the time grows with the table, see ADR 57.

The former release keeps working: it reads `status`, which the trigger writes, and its queries need no dropped index
but for speed. Reversing changes nothing, because the former release works on this schema.
"""

from typing import Any

import django.db.models.deletion
import runtime_jobs.identifiers
from django.db import migrations, models

from runtime_jobs import online_ddl

# PostgreSQL parses the text of each CHECK, WHEN and generated column anew in every statement that writes the table.
# It compiles a PL/pgSQL function once per session. The names are those that the CHECKs had.
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
        ELSE CASE
            WHEN (NEW.finished_at IS NOT NULL) <> (NEW.state = 'canceled') THEN 'job_final_has_finished_at'
            WHEN NEW.failure_reason IS NOT NULL OR NEW.failure_class IS NOT NULL THEN 'job_failed_has_reason'
            WHEN NEW.ingest_run_id IS NOT NULL THEN 'job_run_only_when_uploaded'
            WHEN NEW.state = 'canceled' AND NEW.cancel_requested_at IS NULL THEN 'job_canceled_was_requested'
            WHEN NEW.state NOT IN ('blocked', 'queued', 'leased', 'starting', 'checking_out', 'executing', 'uploading',
                                   'canceled') THEN 'job_state_known' END
    END;
    broken := CASE WHEN broken IS NOT NULL THEN broken
        WHEN NEW.requeue_count > NEW.max_requeues THEN 'job_requeues_bounded'
        WHEN NEW.automatic_retries_spent > NEW.automatic_retries THEN 'job_retries_bounded'
        WHEN least(NEW.requeue_count, NEW.max_requeues, NEW.release_count, NEW.automatic_retries_spent,
                   NEW.automatic_retries, NEW.attempt, NEW.timeout_seconds, NEW.lease_ttl_seconds,
                   NEW.heartbeat_interval_seconds, NEW.acknowledge_within_seconds) < 0 THEN 'job_counts_from_0' END;
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
TRIGGER = """
CREATE OR REPLACE TRIGGER guard_job BEFORE INSERT OR UPDATE ON runtime_jobs FOR EACH ROW EXECUTE FUNCTION guard_job()
"""


def guard_jobs(_apps: Any, schema_editor: Any) -> None:
    """Replace the CHECKs, the trigger of final states and the generated column by one trigger."""
    checks = online_ddl.check_constraints(schema_editor, "runtime_jobs")
    changes = [*(f"DROP CONSTRAINT {name}" for name in checks), "ALTER COLUMN status DROP EXPRESSION IF EXISTS"]
    online_ddl.run_with_short_locks(
        schema_editor,
        [
            GUARD,
            f"ALTER TABLE runtime_jobs {', '.join(changes)}",
            "DROP TRIGGER IF EXISTS final_stays ON runtime_jobs",
            "DROP FUNCTION IF EXISTS refuse_way_out",
            TRIGGER,
        ],
    )


def drop_foreign_keys(_apps: Any, schema_editor: Any) -> None:
    """Drop the foreign key of events. Jobs are locked first, as operations do."""
    keys = online_ddl.foreign_keys(schema_editor, "runtime_job_events")
    drops = [f"ALTER TABLE runtime_job_events DROP CONSTRAINT {name}" for name in keys]
    if drops:
        online_ddl.run_with_short_locks(schema_editor, ["LOCK TABLE runtime_jobs IN ACCESS EXCLUSIVE MODE", *drops])


def change_indexes(_apps: Any, schema_editor: Any) -> None:
    """Create the new indexes, then drop those that no query of this release needs."""
    for name, definition in (
        ("jobs_of_commit", "runtime_jobs (org_slug, git_commit) WHERE git_commit IS NOT NULL"),
        ("jobs_ended_by_status", "runtime_jobs (status, created_at) WHERE finished_at IS NOT NULL"),
        ("jobs_queued_by_age", "runtime_jobs (created_at) WHERE state = 'queued'"),
    ):
        online_ddl.replace_index(schema_editor, name, definition)
    for name, column in (("one_retry_per_job", "retry_of_job_ulid"), ("one_job_per_ingest_run_id", "ingest_run_id")):
        online_ddl.replace_index(
            schema_editor, name, f"runtime_jobs ({column}) WHERE {column} IS NOT NULL", unique=True
        )
    for table in ("runtime_jobs", "runtime_job_events"):
        for name in online_ddl.pattern_indexes(schema_editor, table):
            online_ddl.drop_index(schema_editor, name)
    for name in (
        *("jobs_of_project", "jobs_by_status", "jobs_held_of_address"),
        *("runtime_jobs_ingest_run_id_key", "runtime_job_events_event_ulid_key"),
    ):
        online_ddl.drop_index(schema_editor, name)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0004_labels"), ("leases", "0005_claim_v2")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunPython(guard_jobs, migrations.RunPython.noop),
                migrations.RunPython(drop_foreign_keys, migrations.RunPython.noop),
                migrations.RunPython(change_indexes, migrations.RunPython.noop),
            ],
            state_operations=[
                *(
                    migrations.RemoveConstraint(model_name="job", name=name)
                    for name in (
                        *("job_final_has_finished_at", "job_state_known", "job_uploaded_has_run"),
                        *("job_run_only_when_uploaded", "job_failed_has_reason", "job_canceled_was_requested"),
                        *("job_requeues_bounded", "job_retries_bounded", "one_retry_per_job"),
                    )
                ),
                *(
                    migrations.RemoveIndex(model_name="job", name=name)
                    for name in ("jobs_of_project", "jobs_of_commit", "jobs_by_status", "jobs_held_of_address")
                ),
                migrations.AlterField("job", "ingest_run_id", models.CharField(max_length=64, null=True)),
                migrations.AlterField(
                    "jobevent",
                    "event_ulid",
                    models.CharField(default=runtime_jobs.identifiers.new_event_id, max_length=30),
                ),
                migrations.AlterField(
                    "jobevent",
                    "job",
                    models.ForeignKey(
                        db_column="job_ulid",
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="runtime_jobs.job",
                        to_field="job_ulid",
                    ),
                ),
                *(
                    migrations.AddIndex(model_name="job", index=index)
                    for index in (
                        models.Index(
                            condition=models.Q(("git_commit__isnull", False)),
                            fields=["org_slug", "git_commit"],
                            name="jobs_of_commit",
                        ),
                        models.Index(
                            condition=models.Q(("finished_at__isnull", False)),
                            fields=["status", "created_at"],
                            name="jobs_ended_by_status",
                        ),
                        models.Index(
                            condition=models.Q(("state", "queued")), fields=["created_at"], name="jobs_queued_by_age"
                        ),
                    )
                ),
                *(
                    migrations.AddConstraint(
                        model_name="job",
                        constraint=models.UniqueConstraint(
                            condition=models.Q((f"{column}__isnull", False)), fields=(column,), name=name
                        ),
                    )
                    for name, column in (
                        ("one_retry_per_job", "retry_of_job_ulid"),
                        ("one_job_per_ingest_run_id", "ingest_run_id"),
                    )
                ),
            ],
        ),
    ]
