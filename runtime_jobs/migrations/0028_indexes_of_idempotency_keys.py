"""Index idempotency keys for the key of a job and the jobs of a key. Safe while processes write: CONCURRENTLY."""

from typing import Any

import django.contrib.postgres.indexes
from django.db import migrations, models

from runtime_jobs import online_ddl

DEFINITIONS = {
    "idempotency_keys_by_key": "idempotency_keys (key)",
    "idempotency_keys_by_result": "idempotency_keys USING hash (result_id)",
}


def create_indexes(_apps: Any, schema_editor: Any) -> None:
    """Create the indexes; writes continue."""
    for name, definition in DEFINITIONS.items():
        online_ddl.replace_index(schema_editor, name, definition)


def drop_indexes(_apps: Any, schema_editor: Any) -> None:
    """Drop the indexes; writes continue."""
    for name in DEFINITIONS:
        online_ddl.drop_index(schema_editor, name)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0027_indexes_of_rare_jobs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_indexes, drop_indexes)],
            state_operations=[
                migrations.AddIndex(
                    model_name="idempotencykey",
                    index=models.Index(fields=["key"], name="idempotency_keys_by_key"),
                ),
                migrations.AddIndex(
                    model_name="idempotencykey",
                    index=django.contrib.postgres.indexes.HashIndex(
                        fields=["result_id"], name="idempotency_keys_by_result"
                    ),
                ),
            ],
        ),
    ]
