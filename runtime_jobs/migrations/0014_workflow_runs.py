"""Create the tables of workflow runs, and let a dependency accept any end of the job that it names.

Safe while processes of the former release write: the tables are new, and the new column has a default in the database.
"""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

CONCLUSIONS = [
    ('success', 'Success'),
    ('failure', 'Failure'),
    ('neutral', 'Neutral'),
    ('cancelled', 'Cancelled'),
    ('skipped', 'Skipped'),
    ('timed_out', 'Timed Out'),
    ('action_required', 'Action Required'),
]
EVENTS = [
    ('push', 'Push'),
    ('pull_request', 'Pull Request'),
    ('schedule', 'Schedule'),
    ('workflow_dispatch', 'Dispatch'),
]


class Migration(migrations.Migration):

    dependencies = [('runtime_jobs', '0013_job_steps')]

    operations = [
        migrations.AddField(
            model_name='dependency',
            name='needs_success',
            field=models.BooleanField(db_default=True, default=True, help_text='Without it any end is enough.'),
        ),
        migrations.CreateModel(
            name='WorkflowRun',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('run_index', models.PositiveBigIntegerField()),
                ('workflow_file', models.CharField(max_length=256)),
                ('workflow_name', models.CharField(blank=True, max_length=256)),
                ('head_sha', models.CharField(max_length=64)),
                ('head_ref', models.CharField(blank=True, max_length=256)),
                ('event', models.CharField(choices=EVENTS, max_length=20)),
                ('event_payload', models.JSONField(default=dict)),
                ('actor', models.CharField(blank=True, max_length=200)),
                ('from_fork', models.BooleanField(default=False)),
                ('job_keys', models.JSONField(default=list)),
                ('carried', models.JSONField(default=dict)),
                ('edits', models.JSONField(default=dict)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('concurrency_group', models.CharField(blank=True, max_length=256)),
                ('cancels_older', models.BooleanField(default=False)),
                ('trigger_id', models.CharField(blank=True, max_length=200)),
                ('hold', models.CharField(blank=True, choices=[('approval', 'Approval'), ('concurrency', 'Concurrency')], max_length=20)),
                ('needs_approval', models.BooleanField(default=False)),
                ('approved_by', models.CharField(blank=True, max_length=200)),
                ('approved_at', models.DateTimeField(null=True)),
                ('conclusion', models.CharField(choices=CONCLUSIONS, max_length=20, null=True)),
                ('completed_at', models.DateTimeField(null=True)),
                ('pinned', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('batch', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='workflow_run', to='runtime_jobs.batch')),
                ('parent', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reruns', to='runtime_jobs.workflowrun')),
                ('repository', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'workflow_runs',
                'indexes': [
                    models.Index(condition=models.Q(('conclusion__isnull', True)), fields=['repository', 'concurrency_group'], name='workflow_runs_open'),
                    models.Index(fields=['repository', 'head_sha'], name='workflow_runs_of_commit'),
                    models.Index(condition=models.Q(('completed_at__isnull', False), ('pinned', False)), fields=['completed_at'], name='workflow_runs_ended'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('repository', 'run_index'), name='one_run_per_index'),
                    models.UniqueConstraint(condition=models.Q(('trigger_id', ''), _negated=True), fields=('repository', 'workflow_file', 'trigger_id'), name='one_run_per_trigger'),
                    models.CheckConstraint(condition=models.Q(models.Q(('completed_at__isnull', True), ('conclusion__isnull', True)), models.Q(('completed_at__isnull', False), ('conclusion__isnull', False)), _connector='OR'), name='workflow_run_end'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RejectedWorkflow',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('workflow_file', models.CharField(max_length=256)),
                ('head_sha', models.CharField(max_length=64)),
                ('head_ref', models.CharField(blank=True, max_length=256)),
                ('event', models.CharField(choices=EVENTS, max_length=20)),
                ('trigger_id', models.CharField(max_length=200)),
                ('diagnostics', models.JSONField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('repository', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rejected_workflows', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'rejected_workflows',
                'indexes': [models.Index(fields=['created_at'], name='rejected_workflows_by_age')],
                'constraints': [models.UniqueConstraint(fields=('repository', 'workflow_file', 'trigger_id'), name='one_rejection_per_trigger')],
            },
        ),
        migrations.CreateModel(
            name='WorkflowSchedule',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('workflow_file', models.CharField(max_length=256)),
                ('cron', models.CharField(max_length=200)),
                ('next_at', models.DateTimeField()),
                ('repository', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='workflow_schedules', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'workflow_schedules',
                'indexes': [models.Index(fields=['next_at'], name='workflow_schedules_by_time')],
                'constraints': [models.UniqueConstraint(fields=('repository', 'workflow_file', 'cron'), name='one_workflow_schedule')],
            },
        ),
        migrations.CreateModel(
            name='WorkflowTrigger',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('event', models.CharField(choices=EVENTS, max_length=20)),
                ('trigger_id', models.CharField(max_length=200)),
                ('head_sha', models.CharField(max_length=64)),
                ('facts', models.JSONField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('processed_at', models.DateTimeField(null=True)),
                ('repository', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='workflow_triggers', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'workflow_triggers',
                'indexes': [models.Index(fields=['received_at'], name='workflow_triggers_by_age')],
                'constraints': [models.UniqueConstraint(fields=('repository', 'trigger_id'), name='one_workflow_trigger')],
            },
        ),
    ]
