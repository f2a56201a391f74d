"""What no code may do, whatever its bugs: change the trail, or move a job out of its final state."""

from django.db import migrations

APPEND_ONLY = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention and the rebase of xid after a restore come through one door, which names itself.
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
"""

FINAL_STAYS = """
CREATE FUNCTION refuse_way_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % is % and stays so', OLD.job_ulid, OLD.state USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER final_stays BEFORE UPDATE ON runtime_jobs FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL
          AND (NEW.state, NEW.finished_at, NEW.ingest_run_id, NEW.failure_reason)
              IS DISTINCT FROM (OLD.state, OLD.finished_at, OLD.ingest_run_id, OLD.failure_reason))
    EXECUTE FUNCTION refuse_way_out();
"""

# Rows that are written often leave room on their page, so that an update needs no new index entry.
ROOM = "ALTER TABLE runtime_jobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01)"

UNDO = """
DROP TRIGGER final_stays ON runtime_jobs;
DROP FUNCTION refuse_way_out;
DROP TRIGGER append_only ON runtime_job_events;
DROP TRIGGER append_only_whole ON runtime_job_events;
DROP TRIGGER append_only ON operator_events;
DROP TRIGGER append_only_whole ON operator_events;
DROP FUNCTION refuse_change;
"""


class Migration(migrations.Migration):
    dependencies = [("runtime_jobs", "0001_initial")]
    operations = [
        migrations.RunSQL(APPEND_ONLY + FINAL_STAYS, UNDO),
        migrations.RunSQL(ROOM, "ALTER TABLE runtime_jobs RESET (fillfactor, autovacuum_vacuum_scale_factor)"),
    ]
