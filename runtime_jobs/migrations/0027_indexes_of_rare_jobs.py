"""Index what the admin's filters look for, and put what its counts read into two indexes.

Safe while processes write: each index is built CONCURRENTLY, and the one that it replaces serves until then.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl

DEFINITIONS = {
    "jobs_ended": (
        "runtime_jobs (org_slug, job_type, finished_at DESC) INCLUDE (started_at)"
        " WHERE state IN ('failed', 'succeeded', 'canceled')"
    ),
    "jobs_failed_lately": "runtime_jobs (finished_at) INCLUDE (failure_reason) WHERE state = 'failed'",
    "jobs_cancel_requested": "runtime_jobs (id) WHERE cancel_requested_at IS NOT NULL",
    "jobs_retries": "runtime_jobs (id) WHERE attempt > 1",
    "jobs_redelivered": "runtime_jobs (id) WHERE fence > 1",
}
FORMER = {
    "jobs_ended": (
        "runtime_jobs (org_slug, job_type, finished_at DESC) WHERE state IN ('failed', 'succeeded', 'canceled')"
    ),
    "jobs_failed_lately": "runtime_jobs (finished_at) WHERE state = 'failed'",
}


def create_indexes(_apps: Any, schema_editor: Any) -> None:
    """Create the indexes; writes continue."""
    for name, definition in DEFINITIONS.items():
        online_ddl.replace_index(schema_editor, name, definition)


def restore_indexes(_apps: Any, schema_editor: Any) -> None:
    """Create the former indexes, and drop the new ones."""
    for name in DEFINITIONS:
        if name in FORMER:
            online_ddl.replace_index(schema_editor, name, FORMER[name])
        else:
            online_ddl.drop_index(schema_editor, name)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0026_packs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_indexes, restore_indexes)],
            state_operations=[
                migrations.RemoveIndex(model_name="job", name="jobs_ended"),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("job_type"),
                        models.OrderBy(models.F("finished_at"), descending=True),
                        condition=models.Q(("state__in", ["failed", "succeeded", "canceled"])),
                        include=("started_at",),
                        name="jobs_ended",
                    ),
                ),
                migrations.RemoveIndex(model_name="job", name="jobs_failed_lately"),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        condition=models.Q(("state", "failed")),
                        fields=["finished_at"],
                        include=("failure_reason",),
                        name="jobs_failed_lately",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        condition=models.Q(("cancel_requested_at__isnull", False)),
                        fields=["id"],
                        name="jobs_cancel_requested",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(condition=models.Q(("attempt__gt", 1)), fields=["id"], name="jobs_retries"),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(condition=models.Q(("fence__gt", 1)), fields=["id"], name="jobs_redelivered"),
                ),
            ],
        ),
    ]
