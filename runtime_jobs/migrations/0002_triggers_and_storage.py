"""The rules that triggers keep, the storage of rows that are written often, and the plans of the tiers."""

from typing import Any

from django.db import migrations


# No code may change an event or a billed minute, whatever its bugs.
APPEND_ONLY = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention and the rebase of xid after a restore use one way, which names itself.
    IF current_setting('orchestrator.maintenance', true) = lower(TG_OP) THEN
        RETURN CASE WHEN TG_OP = 'UPDATE' THEN NEW WHEN TG_OP = 'DELETE' THEN OLD END;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runtime_job_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON runtime_job_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON operator_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON operator_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON usage_records
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON usage_records
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""

# One trigger in place of CHECKs and a generated column. PostgreSQL parses the text of each CHECK, WHEN and generated
# column anew in every statement that writes the table; it compiles a PL/pgSQL function once per session. An ended job
# keeps its state and all columns on which evidence rests, whatever the bugs of a program.
GUARD = """
CREATE FUNCTION guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;
CREATE TRIGGER guard_job BEFORE INSERT OR UPDATE ON runtime_jobs FOR EACH ROW EXECUTE FUNCTION guard_job();
ALTER TABLE runtime_jobs ALTER COLUMN status DROP EXPRESSION;
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT conname FROM pg_constraint WHERE conrelid = 'runtime_jobs'::regclass AND contype = 'c' LOOP
        EXECUTE format('ALTER TABLE runtime_jobs DROP CONSTRAINT %I', name);
    END LOOP;
END $$;
"""

# Rows that are written often leave room on their page, so that an update needs no new index entry. The rows of
# followed_jobs are hints, which a crash may delete. No query looks for the beginning of an id.
STORAGE = """
ALTER TABLE runtime_jobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE step_logs SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
ALTER TABLE followed_jobs SET UNLOGGED;
DROP INDEX runtime_jobs_job_ulid_4de44686_like;
"""

# A pack run names a version, and its result is evidence of what was executed: a version never changes.
IMMUTABLE = """
CREATE FUNCTION refuse_pack_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a version of a pack never changes' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER pack_versions_stay BEFORE UPDATE ON pack_versions
    FOR EACH ROW EXECUTE FUNCTION refuse_pack_change();
"""


UNLIMITED_SECONDS = 2**31 - 1
PLANS = [
    {"name": "enterprise", "priority": 300, "max_timeout_seconds": UNLIMITED_SECONDS, "default_timeout_seconds": 3600},
    {"name": "team", "priority": 200, "max_timeout_seconds": UNLIMITED_SECONDS, "default_timeout_seconds": 3600},
    {"name": "free", "priority": 100, "max_timeout_seconds": 300, "default_timeout_seconds": 300, "max_active": 1},
    {
        "name": "unclaimed",
        "priority": 0,
        "max_timeout_seconds": 60,
        "default_timeout_seconds": 60,
        "one_per_address": True,
    },
]


def create_plans(apps: Any, _schema_editor: Any) -> None:
    """Create the plans of the tiers, which operators edit."""
    plans = apps.get_model("runtime_jobs", "Plan").objects
    plans.bulk_create(plans.model(**values) for values in PLANS)


class Migration(migrations.Migration):
    dependencies = [
        ("runtime_jobs", "0001_tables"),
    ]

    operations = [
        migrations.RunSQL(APPEND_ONLY),
        migrations.RunSQL(GUARD),
        migrations.RunSQL(STORAGE),
        migrations.RunSQL(IMMUTABLE),
        migrations.RunPython(create_plans),
    ]
