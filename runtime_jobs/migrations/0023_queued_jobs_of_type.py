"""Index queued jobs for the lists of document 004. Safe while processes write: the index is built CONCURRENTLY."""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl

NAME = "jobs_queued_of_type"
DEFINITION = "runtime_jobs (org_slug, job_type, id DESC) WHERE state = 'queued'"


def create_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index; writes continue."""
    online_ddl.replace_index(schema_editor, NAME, DEFINITION)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0022_stamp_of_events")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_index, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("job_type"),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(("state", "queued")),
                        name=NAME,
                    ),
                ),
            ],
        ),
    ]
