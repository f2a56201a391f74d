"""Create the SQL functions."""

from typing import Any

from django.db import migrations

from leases.sql_functions import CHECKSUMS, read_sql


def create(_apps: Any, schema_editor: Any) -> None:
    for file in CHECKSUMS:
        schema_editor.execute(read_sql(file), params=None)


class Migration(migrations.Migration):
    dependencies = [("leases", "0002_triggers_and_storage")]

    operations = [migrations.RunPython(create)]
