"""Add the index of ended jobs by their creation, for lists with `created_before` and `created_after`.

Safe while processes write: the index is built CONCURRENTLY. Without it such a list reads all jobs of its organization.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl


def create_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index; writes continue."""
    online_ddl.replace_index(
        schema_editor,
        "jobs_ended_by_creation",
        "runtime_jobs (org_slug, created_at) WHERE finished_at IS NOT NULL",
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0005_lean_jobs_and_events")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_index, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["org_slug", "created_at"],
                        name="jobs_ended_by_creation",
                    ),
                ),
            ],
        ),
    ]
