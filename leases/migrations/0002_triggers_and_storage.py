"""The rules of leases that a trigger keeps, and the storage of rows that are written often."""

from django.db import migrations


# One trigger in place of CHECKs and a generated column: see the trigger of `runtime_jobs`.
GUARD = """
CREATE FUNCTION guard_lease() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE broken text;
BEGIN
    broken := CASE
        WHEN NEW.state NOT IN ('granted', 'active', 'completed', 'canceled', 'released', 'expired', 'revoked')
            THEN 'lease_state_known'
        WHEN (NEW.state IN ('granted', 'active')) <> (NEW.completed_at IS NULL) THEN 'lease_open_or_completed'
        WHEN NEW.state = 'active' AND NEW.acknowledged_at IS NULL THEN 'lease_active_is_acknowledged'
        WHEN least(NEW.ttl_seconds, NEW.heartbeat_interval_seconds, NEW.acknowledge_within_seconds) < 0
            THEN 'lease_counts_from_0' END;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'new row for relation "%" violates check constraint "%"', TG_TABLE_NAME, broken
            USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME;
    END IF;
    NEW.status := CASE WHEN NEW.completed_at IS NULL THEN 'open' ELSE NEW.state END;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_lease BEFORE INSERT OR UPDATE ON runtime_worker_leases
    FOR EACH ROW EXECUTE FUNCTION guard_lease();
ALTER TABLE runtime_worker_leases ALTER COLUMN status DROP EXPRESSION;
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT conname FROM pg_constraint WHERE conrelid = 'runtime_worker_leases'::regclass AND contype = 'c' LOOP
        EXECUTE format('ALTER TABLE runtime_worker_leases DROP CONSTRAINT %I', name);
    END LOOP;
END $$;
"""

# Renewals are the most frequent write: they find room on their own page (HOT). No query looks for the beginning of an
# id. The ids of lanes, queues and limits begin again after the last one of 32 bits. `lane_versions` has no cache: versions
# of a row must rise.
STORAGE = """
ALTER TABLE runtime_worker_leases SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);
DROP INDEX runtime_worker_leases_lease_ulid_a348afaf_like;
CREATE SEQUENCE lane_versions;
ALTER SEQUENCE lanes_id_seq CYCLE;
ALTER SEQUENCE lane_queues_id_seq CYCLE;
ALTER SEQUENCE lane_limits_id_seq CYCLE;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("leases", "0001_tables"),
    ]

    operations = [
        migrations.RunSQL(GUARD),
        migrations.RunSQL(STORAGE),
    ]
