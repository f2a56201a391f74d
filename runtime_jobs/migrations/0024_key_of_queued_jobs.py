"""Index queued jobs by an expression of their key, which no other index has. Safe while processes write."""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl

NAME = "jobs_queued_of_type"
TABLE = "runtime_jobs (org_slug, job_type, {key} DESC) WHERE state = 'queued'"


def replace_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index, then drop the one that had its name; writes continue."""
    online_ddl.replace_index(schema_editor, NAME, TABLE.format(key="(id + 0)"))


def restore_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index of the release before; writes continue."""
    online_ddl.replace_index(schema_editor, NAME, TABLE.format(key="id"))


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0023_queued_jobs_of_type")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(replace_index, restore_index)],
            state_operations=[
                migrations.RemoveIndex(model_name="job", name=NAME),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("job_type"),
                        models.OrderBy(models.F("id") + 0, descending=True),
                        condition=models.Q(("state", "queued")),
                        name=NAME,
                    ),
                ),
            ],
        ),
    ]
