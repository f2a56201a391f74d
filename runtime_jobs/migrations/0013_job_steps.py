"""Create the table of steps, and allow two further reasons of a cancel.

Safe while processes write: the table is new and has no foreign key in the database. The reasons are checked by Django
alone, so the columns stay as they are.
"""

import django.db.models.deletion
from django.db import migrations, models

CANCEL_REASONS = [
    ('requested', 'Requested'),
    ('batch_canceled', 'Batch Canceled'),
    ('superseded', 'Superseded'),
    ('dependency_failed', 'Dependency Failed'),
    ('timeout', 'Timeout'),
    ('operator', 'Operator'),
    ('condition_false', 'Condition False'),
    ('stopped_by_worker', 'Stopped By Worker'),
]


class Migration(migrations.Migration):

    dependencies = [('runtime_jobs', '0012_repositories')]

    operations = [
        migrations.AlterField(
            model_name='batch',
            name='cancel_reason',
            field=models.CharField(choices=CANCEL_REASONS, max_length=30, null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='cancel_reason',
            field=models.CharField(choices=CANCEL_REASONS, max_length=30, null=True),
        ),
        migrations.CreateModel(
            name='JobStep',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('index', models.PositiveIntegerField()),
                ('step_id', models.CharField(blank=True, max_length=100)),
                ('name', models.CharField(blank=True, max_length=256)),
                ('condition', models.TextField(blank=True)),
                ('run', models.TextField(blank=True)),
                ('uses', models.CharField(blank=True, max_length=256)),
                ('working_directory', models.CharField(blank=True, max_length=1024)),
                ('env', models.JSONField(default=dict)),
                ('with_values', models.JSONField(default=dict)),
                ('continue_on_error', models.BooleanField(default=False)),
                ('status', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('completed', 'Completed'), ('cancelled', 'Cancelled'), ('skipped', 'Skipped')], default='queued', editable=False, max_length=20)),
                ('conclusion', models.CharField(choices=[('success', 'Success'), ('failure', 'Failure'), ('neutral', 'Neutral'), ('cancelled', 'Cancelled'), ('skipped', 'Skipped'), ('timed_out', 'Timed Out'), ('action_required', 'Action Required')], editable=False, max_length=20, null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('completed_at', models.DateTimeField(null=True)),
                ('log_object_key', models.CharField(max_length=1024, null=True)),
                ('log_byte_count', models.BigIntegerField(default=0)),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_job_steps',
                'constraints': [
                    models.UniqueConstraint(fields=('job', 'index'), name='one_step_per_index'),
                    models.CheckConstraint(condition=models.Q(models.Q(models.Q(('run', ''), _negated=True), ('uses', '')), models.Q(('run', ''), models.Q(('uses', ''), _negated=True)), _connector='OR'), name='job_step_runs_or_uses'),
                    models.CheckConstraint(condition=models.Q(models.Q(('completed_at__isnull', True), ('conclusion__isnull', True), ('status__in', ('queued', 'running'))), models.Q(('completed_at__isnull', False), ('conclusion__isnull', False), ('status__in', ('completed', 'cancelled', 'skipped'))), _connector='OR'), name='job_step_end'),
                    models.CheckConstraint(condition=models.Q(('log_byte_count__gte', 0)), name='job_step_log_byte_count'),
                ],
            },
        ),
    ]
