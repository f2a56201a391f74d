"""Mark jobs that have announced an artifact, so that the end of all others reads no artifacts.

A column with a constant default: no row is rewritten, and processes of the former release insert jobs without it. They
bind no artifacts, so nothing is missed of the jobs whose end they write.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl


def add_column(_apps: Any, schema_editor: Any) -> None:
    """Add the column."""
    column = "ADD COLUMN IF NOT EXISTS has_artifacts boolean NOT NULL DEFAULT false"
    online_ddl.run_with_short_locks(schema_editor, [f"ALTER TABLE runtime_jobs {column}"])


def drop_column(_apps: Any, schema_editor: Any) -> None:
    """Drop the column."""
    online_ddl.run_with_short_locks(schema_editor, ["ALTER TABLE runtime_jobs DROP COLUMN IF EXISTS has_artifacts"])


class Migration(migrations.Migration):  # noqa: D101
    atomic = False

    dependencies = [("runtime_jobs", "0025_final_jobs_stay")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(add_column, drop_column)],
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
