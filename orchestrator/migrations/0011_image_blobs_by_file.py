"""Add the index of the blobs of images by their file, for collection.

Safe while processes write: the index is built CONCURRENTLY. Without it collection reads all blobs for each 500 files.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl


def create_index(_apps: Any, schema_editor: Any) -> None:
    """Create the index; writes continue."""
    online_ddl.replace_index(schema_editor, "image_blobs_by_file", "image_blobs (file)")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("orchestrator", "0010_image_usage")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_index, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddIndex(
                    model_name="imageblob", index=models.Index(fields=["file"], name="image_blobs_by_file")
                ),
            ],
        ),
    ]
