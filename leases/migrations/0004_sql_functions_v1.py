"""Create the SQL functions of version 1 from frozen files.

The functions without a version that commit 8637103 created stay as they are, so that its processes serve while
and after this migration runs. The release after 0.1.0 drops them.
"""

from typing import Any

from django.db import migrations

from leases.sql_functions import read_sql

FILES = ("v1/claim.sql", "v1/release.sql", "v1/periodic.sql", "v1/prune.sql", "v1/submit_quota.sql")
NAMES = (
    *("bucket_tokens_v1", "limit_is_full_v1", "limit_capacity_v1", "assign_slots_v1", "claim_jobs_v1"),
    *("queue_rank_v1", "queue_tier_v1", "refresh_queue_heads_v1", "charge_shares_v1", "reassign_overflow_slots_v1"),
    *("finalize_claim_v1", "require_lanes_v1", "raise_share_floor_v1", "activate_queues_v1"),
    *("release_and_enqueue_v1", "activate_due_queues_v1", "apply_aging_v1", "stale_lanes_v1"),
    *("advance_lane_cursor_v1", "prune_idle_lanes_v1", "prune_empty_queues_v1", "prune_unused_limits_v1"),
    *("count_waiting_jobs_v1", "take_submit_quota_v1", "recount_submit_quota_v1"),
)


def create(_apps: Any, schema_editor: Any) -> None:
    for file in FILES:
        schema_editor.execute(read_sql(file), params=None)


def drop(_apps: Any, schema_editor: Any) -> None:
    for name in NAMES:
        schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}")


class Migration(migrations.Migration):
    dependencies = [
        ("leases", "0003_idle_lanes"),
        ("runtime_jobs", "0004_labels"),
        ("workers", "0004_pool_aging"),
    ]

    operations = [migrations.RunPython(create, drop)]
