"""Runs belong to a lease, not to a job alone.

Processes of the release before may run meanwhile: they store rows without a fence, which stay readable and countable.
"""

from django.db import migrations, models

# A run that arrived while its worker had a lease on the job belongs to that lease. Any other one keeps no fence.
BACKFILL = """
    UPDATE ingest_runs r SET fence = l.fence
      FROM runtime_worker_leases l
     WHERE l.job_ulid = r.job_id AND l.worker_id = r.worker_id AND r.received_at >= l.leased_at
       AND (l.completed_at IS NULL OR r.received_at <= l.completed_at)
"""


class Migration(migrations.Migration):
    dependencies = [
        ("leases", "0001_schema"),
        ("orchestrator", "0003_login_attempts"),
    ]

    operations = [
        migrations.AddField(model_name="run", name="fence", field=models.BigIntegerField(null=True)),
        migrations.RunSQL(BACKFILL, migrations.RunSQL.noop),
        migrations.AlterField(model_name="run", name="job_id", field=models.CharField(max_length=30)),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.UniqueConstraint(
                fields=["job_id", "fence"], name="one_run_per_lease", nulls_distinct=False
            ),
        ),
    ]
