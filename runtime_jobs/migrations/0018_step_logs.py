"""Create the logs of steps, and count the chunks that are stored already.

Safe while processes of the former release write: the tables are new, and the counting reads and inserts in batches of
jobs. A chunk that a process of the former release appends after its job was counted is found when the log grows again.
"""

from typing import Any

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

JOBS_PER_STATEMENT = 5000
COUNT = """
INSERT INTO step_logs (job_ulid, step, chunk_count, stored_bytes, needs_finalizing)
SELECT c.job_ulid, c.step, max(c.seq) + 1, sum(octet_length(c.chunk)), true
  FROM runtime_jobs j JOIN runtime_job_log_chunks c USING (job_ulid)
 WHERE j.id > %s AND j.id <= %s GROUP BY c.job_ulid, c.step
    ON CONFLICT DO NOTHING"""


def count_chunks(_apps: Any, schema_editor: Any) -> None:
    """Create the row of each log that has chunks."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(id), 0) FROM runtime_jobs")
        last = cursor.fetchone()[0]
        for first in range(0, last, JOBS_PER_STATEMENT):
            cursor.execute(COUNT, [first, first + JOBS_PER_STATEMENT])


# Its rows are hints, so a crash may empty it. Rows of logs change with each chunk: free space keeps those updates HOT.
STORAGE = """
ALTER TABLE followed_jobs SET UNLOGGED;
ALTER TABLE step_logs SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
"""


class Migration(migrations.Migration):  # noqa: D101
    atomic = False

    dependencies = [("runtime_jobs", "0017_identity_keys")]

    operations = [
        migrations.CreateModel(
            name="DiscardedLogObject",
            fields=[
                ("name", models.CharField(max_length=1024, primary_key=True, serialize=False)),
                ("discarded_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "discarded_log_objects",
            },
        ),
        migrations.CreateModel(
            name="FollowedJob",
            fields=[
                ("job_ulid", models.CharField(max_length=30, primary_key=True, serialize=False)),
                ("until", models.DateTimeField()),
            ],
            options={
                "db_table": "followed_jobs",
            },
        ),
        migrations.CreateModel(
            name="StepLog",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("step", models.PositiveIntegerField()),
                ("next_seq", models.BigIntegerField(db_default=0, default=0)),
                ("skipped", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("chunk_count", models.BigIntegerField(db_default=0, default=0)),
                ("stored_bytes", models.BigIntegerField(db_default=0, default=0)),
                ("held", models.BinaryField(null=True)),
                ("held_masked", models.IntegerField(db_default=0, default=0)),
                ("waiting_bytes", models.BigIntegerField(db_default=0, default=0)),
                ("waiting_count", models.IntegerField(db_default=0, default=0)),
                ("open_line", models.BinaryField(db_default=b"", default=b"")),
                ("annotation_count", models.IntegerField(db_default=0, default=0)),
                ("is_truncated", models.BooleanField(db_default=False, default=False)),
                ("omitted_forms", models.IntegerField(db_default=0, default=0)),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_bytes", models.BigIntegerField(null=True)),
                ("object_key", models.CharField(db_default="", default="", max_length=1024)),
                ("object_bytes", models.BigIntegerField(db_default=0, default=0)),
                ("attempts", models.IntegerField(db_default=0, default=0)),
                ("needs_finalizing", models.BooleanField(db_default=False, default=False)),
                (
                    "job",
                    models.ForeignKey(
                        db_column="job_ulid",
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="step_logs",
                        to="runtime_jobs.job",
                        to_field="job_ulid",
                    ),
                ),
            ],
            options={
                "db_table": "step_logs",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "step"), name="one_log_per_step"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("object_bytes", 0), ("object_key", "")),
                            models.Q(models.Q(("object_key", ""), _negated=True), ("attempts__gte", 1)),
                            _connector="OR",
                        ),
                        name="step_log_object",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("held__isnull", False), ("held_masked__gte", 0)),
                            ("held_masked", 0),
                            _connector="OR",
                        ),
                        name="step_log_held",
                    ),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("needs_finalizing", True)), fields=["id"], name="step_logs_to_finalize"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WaitingLogChunk",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("seq", models.BigIntegerField()),
                ("size", models.IntegerField()),
                ("sealed", models.BinaryField()),
                (
                    "step_log",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="waiting",
                        to="runtime_jobs.steplog",
                    ),
                ),
            ],
            options={
                "db_table": "step_log_waiting_chunks",
                "constraints": [models.UniqueConstraint(fields=("step_log", "seq"), name="one_waiting_chunk_per_seq")],
            },
        ),
        migrations.CreateModel(
            name="StepAnnotation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step", models.PositiveIntegerField()),
                ("number", models.PositiveIntegerField()),
                (
                    "level",
                    models.CharField(
                        choices=[("notice", "Notice"), ("warning", "Warning"), ("error", "Error")], max_length=10
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("title", models.CharField(blank=True, max_length=255)),
                ("path", models.CharField(blank=True, max_length=1024)),
                ("start_line", models.PositiveIntegerField(null=True)),
                ("end_line", models.PositiveIntegerField(null=True)),
                ("start_column", models.PositiveIntegerField(null=True)),
                ("end_column", models.PositiveIntegerField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        db_column="job_ulid",
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="annotations",
                        to="runtime_jobs.job",
                        to_field="job_ulid",
                    ),
                ),
            ],
            options={
                "db_table": "step_annotations",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "step", "number"), name="one_annotation_per_number")
                ],
            },
        ),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunPython(count_chunks, migrations.RunPython.noop),
    ]
