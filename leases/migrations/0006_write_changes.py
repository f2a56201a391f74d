"""Create the SQL functions that store a unit of work with one statement."""

from typing import Any

from django.db import migrations

from leases.sql_functions import read_sql

NAMES = ("activate_queues_v2", "enter_lanes_v2", "release_and_enqueue_v2", "write_changes_v2")


def create(_apps: Any, schema_editor: Any) -> None:
    schema_editor.execute(read_sql("v2/write.sql"), params=None)


def drop(_apps: Any, schema_editor: Any) -> None:
    for name in NAMES:
        schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}")


class Migration(migrations.Migration):
    dependencies = [("leases", "0005_claim_v2")]

    operations = [migrations.RunPython(create, drop)]
