"""Index operator events by their position in the feeds, and jobs for the lists of document 004.

Safe while processes write: the indexes are built CONCURRENTLY.
"""

from typing import Any

from django.db import migrations, models

from runtime_jobs import online_ddl

DEFINITIONS = {
    "operator_events_by_stamp": "operator_events (xid, id)",
    "jobs_of_type_by_key": "runtime_jobs (org_slug, job_type, id DESC)",
    "jobs_ended_of_type": "runtime_jobs (org_slug, job_type, status, id DESC) WHERE finished_at IS NOT NULL",
    "jobs_ended_of_organization": "runtime_jobs (org_slug, status, id DESC) WHERE finished_at IS NOT NULL",
    "jobs_ended_of_correlation": "runtime_jobs (org_slug, correlation_id) WHERE finished_at IS NOT NULL",
    "jobs_queued_of_correlation": "runtime_jobs (org_slug, correlation_id) WHERE state = 'queued'",
    "jobs_replayed": "runtime_jobs (replay_of_job_ulid) WHERE replay_of_job_ulid IS NOT NULL",
}


def create_indexes(_apps: Any, schema_editor: Any) -> None:
    """Create the indexes; writes continue."""
    for name, definition in DEFINITIONS.items():
        online_ddl.replace_index(schema_editor, name, definition)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0019_roles_and_operator_event_columns")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(create_indexes, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddIndex(
                    model_name="operatorevent",
                    index=models.Index(fields=["xid", "id"], name="operator_events_by_stamp"),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("job_type"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="jobs_of_type_by_key",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("job_type"),
                        models.F("status"),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="jobs_ended_of_type",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        models.F("org_slug"),
                        models.F("status"),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="jobs_ended_of_organization",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["org_slug", "correlation_id"],
                        name="jobs_ended_of_correlation",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        condition=models.Q(("state", "queued")),
                        fields=["org_slug", "correlation_id"],
                        name="jobs_queued_of_correlation",
                    ),
                ),
                migrations.AddIndex(
                    model_name="job",
                    index=models.Index(
                        condition=models.Q(("replay_of_job_ulid__isnull", False)),
                        fields=["replay_of_job_ulid"],
                        name="jobs_replayed",
                    ),
                ),
            ],
        ),
    ]
