"""Create the store of a unit of work that knows the columns of jobs which settle. Version 2 stays for the former release."""

from typing import Any

from django.db import migrations

from leases.sql_functions import read_sql

NAMES = ("write_and_claim_v3", "write_changes_v3")


def create(_apps: Any, schema_editor: Any) -> None:
    schema_editor.execute(read_sql("v3/write.sql"), params=None)


def drop(_apps: Any, schema_editor: Any) -> None:
    for name in NAMES:
        schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}")


class Migration(migrations.Migration):
    dependencies = [("leases", "0007_lean_leases"), ("runtime_jobs", "0007_settling_states")]

    operations = [migrations.RunPython(create, drop)]
