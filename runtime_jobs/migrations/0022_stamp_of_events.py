"""Order the events of a job in the feeds as in its history: a new default of their stamp.

A claim has its transaction id before it takes a job that a later transaction has submitted. With that id alone the
feeds had `job.leased` before `job.queued`. Safe while processes of the former release write: the default is in the
database, and the statement reads no row. Events that exist keep their stamp.
"""

from typing import Any

from django.db import migrations

import runtime_jobs.db_functions
from runtime_jobs import online_ddl

TABLE = "runtime_job_events"
NEW = "greatest(pg_current_xact_id(), (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8)"


def set_default(_apps: Any, schema_editor: Any) -> None:
    """Set the default of new rows."""
    online_ddl.run_with_short_locks(schema_editor, [f"ALTER TABLE {TABLE} ALTER COLUMN xid SET DEFAULT {NEW}"])


def restore_default(_apps: Any, schema_editor: Any) -> None:
    """Set the default of the former release."""
    former = f"ALTER TABLE {TABLE} ALTER COLUMN xid SET DEFAULT pg_current_xact_id()"
    online_ddl.run_with_short_locks(schema_editor, [former])


class Migration(migrations.Migration):  # noqa: D101
    atomic = False

    dependencies = [("runtime_jobs", "0021_ended_jobs_with_canceled")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(set_default, restore_default)],
            state_operations=[
                migrations.AlterField(
                    model_name="jobevent",
                    name="xid",
                    field=runtime_jobs.db_functions.TransactionId(db_default=runtime_jobs.db_functions.FeedStamp()),
                ),
            ],
        ),
    ]
