"""Create the pool of runners. Its order is strict: oldest job first within a priority, no aging."""

from typing import Any

from django.db import migrations


def create_pool(apps: Any, _schema_editor: Any) -> None:
    """Create the pool, unless an operator has created one of the same name."""
    pool = apps.get_model("workers", "Pool")
    defaults = {
        "description": "Runners of the Bencher protocol.",
        "least_isolation": "none",
        "policy": "fifo",
        "aging": False,
    }
    pool.objects.get_or_create(slug="bare-metal", defaults=defaults)


class Migration(migrations.Migration):
    dependencies = [("workers", "0005_runners")]

    operations = [migrations.RunPython(create_pool, migrations.RunPython.noop)]
