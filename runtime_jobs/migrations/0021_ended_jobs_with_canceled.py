"""Include canceled jobs in the index of ended jobs by type: the use of a quota and the dashboard count them, too.

Safe while processes write: the index is built CONCURRENTLY, and the queries of the former release use the new one.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl


def replace_index(_apps: Any, schema_editor: Any) -> None:
    """Replace the index; writes continue."""
    online_ddl.replace_index(
        schema_editor,
        "jobs_ended",
        "runtime_jobs (org_slug, job_type, finished_at DESC) WHERE state IN ('failed', 'succeeded', 'canceled')",
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0020_operator_events_by_stamp")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(replace_index, migrations.RunPython.noop)],
            state_operations=[
                migrations.RemoveIndex(model_name="job", name="jobs_ended"),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("job_type"),
                        models.OrderBy(models.F("finished_at"), descending=True),
                        condition=models.Q(("state__in", ["failed", "succeeded", "canceled"])),
                        name="jobs_ended",
                    ),
                ),
            ],
        ),
    ]
