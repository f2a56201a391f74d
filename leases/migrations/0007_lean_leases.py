"""Reduce what a lease costs per write: fewer indexes, one trigger in place of six CHECKs, no foreign keys.

Locks and durations are those of `runtime_jobs` 0005. The state is no longer in an index, so an acknowledgement is a HOT
update like a heartbeat. The former release finds open leases by the worker or reads all leases, until it is stopped.
Reversing changes nothing, because the former release works on this schema.
"""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models

from runtime_jobs import online_ddl

GUARD = """
CREATE OR REPLACE FUNCTION guard_lease() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$
"""
TRIGGER = """
CREATE OR REPLACE TRIGGER guard_lease BEFORE INSERT OR UPDATE ON runtime_worker_leases
    FOR EACH ROW EXECUTE FUNCTION guard_lease()
"""


def guard_leases(_apps: Any, schema_editor: Any) -> None:
    """Replace the CHECKs and the generated column by one trigger."""
    checks = online_ddl.check_constraints(schema_editor, "runtime_worker_leases")
    changes = [*(f"DROP CONSTRAINT {name}" for name in checks), "ALTER COLUMN status DROP EXPRESSION IF EXISTS"]
    statements = [GUARD, f"ALTER TABLE runtime_worker_leases {', '.join(changes)}", TRIGGER]
    online_ddl.run_with_short_locks(schema_editor, statements)


def drop_foreign_keys(_apps: Any, schema_editor: Any) -> None:
    """Drop the foreign keys of leases. Workers and jobs are locked first, as operations do."""
    drops = [
        f"ALTER TABLE runtime_worker_leases DROP CONSTRAINT {name}"
        for name in online_ddl.foreign_keys(schema_editor, "runtime_worker_leases")
    ]
    if drops:
        online_ddl.run_with_short_locks(
            schema_editor, ["LOCK TABLE workers_worker, runtime_jobs IN ACCESS EXCLUSIVE MODE", *drops]
        )


def change_indexes(_apps: Any, schema_editor: Any) -> None:
    """Create the new indexes, then drop those that no query of this release needs."""
    online_ddl.replace_index(
        schema_editor,
        "one_open_lease_per_job",
        "runtime_worker_leases (job_ulid) WHERE completed_at IS NULL",
        unique=True,
    )
    for name in ("leases_of_job", "open_leases", *online_ddl.pattern_indexes(schema_editor, "runtime_worker_leases")):
        online_ddl.drop_index(schema_editor, name)


def _foreign_key(to: str, **options: Any) -> models.ForeignKey:
    return models.ForeignKey(
        db_constraint=False,
        db_index=False,
        on_delete=django.db.models.deletion.PROTECT,
        related_name="leases",
        to=to,
        **options,
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("leases", "0006_write_changes"),
        ("runtime_jobs", "0005_lean_jobs_and_events"),
        ("workers", "0004_pool_aging"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunPython(guard_leases, migrations.RunPython.noop),
                migrations.RunPython(drop_foreign_keys, migrations.RunPython.noop),
                migrations.RunPython(change_indexes, migrations.RunPython.noop),
            ],
            state_operations=[
                *(
                    migrations.RemoveConstraint(model_name="lease", name=name)
                    for name in (
                        *("one_open_lease_per_job", "lease_open_or_completed", "lease_state_known"),
                        "lease_active_is_acknowledged",
                    )
                ),
                *(migrations.RemoveIndex(model_name="lease", name=name) for name in ("leases_of_job", "open_leases")),
                migrations.AlterField(
                    "lease", "job", _foreign_key("runtime_jobs.job", to_field="job_ulid", db_column="job_ulid")
                ),
                migrations.AlterField("lease", "worker", _foreign_key("workers.worker", to_field="worker_id")),
                migrations.AddConstraint(
                    model_name="lease",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("completed_at__isnull", True)),
                        fields=("job",),
                        name="one_open_lease_per_job",
                    ),
                ),
            ],
        ),
    ]
