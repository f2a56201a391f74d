"""Add the index of jobs by their hardware spec, for the deletion of a spec.

Safe while processes write: the index is built CONCURRENTLY. It has jobs of type `oci` only. Without it the deletion of a
spec whose jobs retention has deleted reads all jobs.
"""

from typing import Any

from django.db import migrations, models
from django.db.models.fields.json import KT

from runtime_jobs import online_ddl


def create_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index; writes continue."""
    online_ddl.replace_index(
        schema_editor,
        "jobs_of_hardware_spec",
        "runtime_jobs ((spec ->> 'spec')) WHERE job_type = 'oci'",
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0010_personal_and_project_keys")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_index, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        KT("spec__spec"), condition=models.Q(("job_type", "oci")), name="jobs_of_hardware_spec"
                    ),
                ),
            ],
        ),
    ]
