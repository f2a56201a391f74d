"""Create the claim as one SQL function. The functions of version 1 stay: processes of the former release call them."""

from typing import Any

from django.db import migrations

from leases.sql_functions import read_sql

NAMES = (
    *("write_and_claim_v2", "claim_v2", "finalize_claim_v2", "count_addresses_v2", "assign_slots_v2", "queue_tier_v2", "queue_rank_v2"),
    "event_hash_v2",
)


def create(_apps: Any, schema_editor: Any) -> None:
    schema_editor.execute(read_sql("v2/claim.sql"), params=None)


def drop(_apps: Any, schema_editor: Any) -> None:
    for name in NAMES:
        schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}")


class Migration(migrations.Migration):
    dependencies = [("leases", "0004_sql_functions_v1")]

    operations = [migrations.RunPython(create, drop)]
