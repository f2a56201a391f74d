"""Create the functions again that lock several queues, for databases of earlier commits (docs/adr/0104)."""

from typing import Any

from django.db import migrations

from leases.sql_functions import read_sql


def create(_apps: Any, schema_editor: Any) -> None:
    for file in ("v1/release.sql", "v2/claim.sql", "v2/write.sql"):
        schema_editor.execute(read_sql(file), params=None)


class Migration(migrations.Migration):
    """Reversing changes nothing: former processes can call the functions."""

    dependencies = [("leases", "0010_project_limits")]

    operations = [migrations.RunPython(create, migrations.RunPython.noop)]
