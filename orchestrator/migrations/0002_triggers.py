"""The triggers that announce credentials and that keep evidence, and the place from which events are delivered."""

from django.db import migrations


# The triggers fire for each statement that could change what a token permits, whoever sends it: web processes keep that
# in `orchestrator.core.principal_cache`. Columns of a worker that no principal contains, or that claims write, are
# absent: `tests/orchestrator/http/test_principal_cache.py` names them.
CREDENTIALS = """
CREATE FUNCTION notify_credentials() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('credentials', '');
    RETURN NULL;
END $$;

CREATE TRIGGER credentials_changed AFTER UPDATE OR DELETE ON runtime_jobs_apitoken
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
CREATE TRIGGER credentials_changed AFTER UPDATE OF slug ON runtime_jobs_organization
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
CREATE TRIGGER credentials_changed AFTER UPDATE ON workers_pool
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
CREATE TRIGGER credentials_changed
    AFTER UPDATE OF worker_id, slug, pool_id, digest, certificate_subject, capacity, labels, capabilities, state
        OR DELETE ON workers_worker
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
"""

# As those of the event history: retention alone passes them, by `orchestrator.maintenance`.
APPEND_ONLY = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON operator_event_links
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON operator_event_links
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OF id, org_slug, number, created_at, sha256, envelope OR DELETE
    ON evidence_checkpoints FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON evidence_checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OF job_ulid, checkpoint_id, seq, head OR DELETE
    ON evidence_checkpoint_jobs FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON evidence_checkpoint_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""

# Events are delivered from here on, also those that occur before the first dispatcher starts.
DISPATCH_START = """
INSERT INTO dispatch_position (id, stamp, kind, event_id, beat_at)
VALUES (1, pg_snapshot_xmin(pg_current_snapshot()), 0, 0, clock_timestamp())"""


class Migration(migrations.Migration):
    dependencies = [
        ("orchestrator", "0001_tables"),
        ("runtime_jobs", "0002_triggers_and_storage"),
    ]

    operations = [
        migrations.RunSQL(CREDENTIALS),
        migrations.RunSQL(APPEND_ONLY),
        migrations.RunSQL(DISPATCH_START),
    ]
