"""The schema of 0.1.0. A database that ran commit 8637103 has all of it: `replaces` lists the migrations it applied."""

import django.db.models.functions.datetime
import runtime_jobs.db_functions
import runtime_jobs.identifiers
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    replaces = [
        ('orchestrator', '0001_initial'),
        ('orchestrator', '0002_webhook_deliveries'),
        ('orchestrator', '0003_scheduling'),
        ('orchestrator', '0004_metric_counts'),
    ]

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='ClockBeat',
            fields=[
                ('id', models.SmallAutoField(primary_key=True, serialize=False)),
                ('leader', models.CharField(max_length=100)),
                ('beat_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'clock_beats',
            },
        ),
        migrations.CreateModel(
            name='Place',
            fields=[
                ('id', models.SmallAutoField(primary_key=True, serialize=False)),
                ('xid', runtime_jobs.db_functions.TransactionId()),
                ('event_id', models.BigIntegerField()),
                ('beats_until', models.DateTimeField()),
            ],
            options={
                'db_table': 'metric_place',
            },
        ),
        migrations.CreateModel(
            name='Count',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40)),
                ('job_type', models.CharField(blank=True, max_length=50)),
                ('detail', models.CharField(blank=True, max_length=40)),
                ('org_slug', models.CharField(blank=True, max_length=63)),
                ('bound', models.FloatField(default=0)),
                ('value', models.FloatField(default=0)),
            ],
            options={
                'db_table': 'metric_counts',
                'constraints': [models.UniqueConstraint(fields=('name', 'job_type', 'detail', 'org_slug', 'bound'), name='one_metric_count')],
            },
        ),
        migrations.CreateModel(
            name='Incident',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('incident_ulid', models.CharField(default=runtime_jobs.identifiers.new_incident_id, editable=False, max_length=30, unique=True)),
                ('kind', models.CharField(choices=[('breaker', 'breaker')], max_length=20)),
                ('org_slug', models.CharField(max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('summary', models.CharField(max_length=500)),
                ('opened_at', models.DateTimeField()),
                ('resolved_at', models.DateTimeField(null=True)),
                ('resolved_by', models.CharField(blank=True, max_length=200)),
            ],
            options={
                'db_table': 'incidents',
                'indexes': [models.Index(condition=models.Q(('resolved_at', None)), fields=['org_slug', 'job_type'], name='incidents_open')],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('run_id', models.CharField(max_length=64, unique=True)),
                ('job_id', models.CharField(max_length=30, unique=True)),
                ('org_slug', models.CharField(max_length=63)),
                ('project_slug', models.CharField(max_length=63)),
                ('worker_id', models.CharField(max_length=30)),
                ('payload', models.JSONField()),
                ('payload_sha256', models.CharField(max_length=64)),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'ingest_runs',
                'indexes': [models.Index(fields=['org_slug', 'project_slug', '-id'], name='runs_of_project')],
            },
        ),
        migrations.CreateModel(
            name='WebhookDelivery',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('delivery_id', models.CharField(max_length=64, null=True)),
                ('event', models.CharField(max_length=64)),
                ('action', models.CharField(blank=True, max_length=64)),
                ('repository', models.CharField(blank=True, max_length=201)),
                ('git_commit', models.CharField(max_length=64, null=True)),
                ('pull_request_number', models.BigIntegerField(null=True)),
                ('org_slug', models.CharField(blank=True, max_length=63)),
                ('project_slug', models.CharField(blank=True, max_length=63)),
                ('outcome', models.CharField(choices=[('created', 'Created'), ('duplicate', 'Duplicate'), ('ignored', 'Ignored'), ('refused', 'Refused')], max_length=10)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('event_key', models.CharField(max_length=64, null=True)),
                ('batch_ulid', models.CharField(max_length=30, null=True)),
                ('job_ulid', models.CharField(max_length=30, null=True)),
                ('source_address', models.GenericIPAddressField(null=True)),
                ('received_at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'webhook deliveries',
                'db_table': 'webhook_deliveries',
                'indexes': [models.Index(fields=['received_at'], name='webhook_deliveries_by_age')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('event_key__isnull', False)), fields=('org_slug', 'project_slug', 'event_key'), name='one_job_per_event'), models.UniqueConstraint(condition=models.Q(('delivery_id__isnull', False), models.Q(('org_slug', ''), _negated=True)), fields=('org_slug', 'project_slug', 'delivery_id'), name='one_row_per_delivery'), models.CheckConstraint(condition=models.Q(models.Q(('batch_ulid__isnull', False), ('event_key__isnull', False), ('job_ulid__isnull', False), ('outcome', 'created')), models.Q(models.Q(('outcome', 'created'), _negated=True), ('event_key__isnull', True)), _connector='OR'), name='a_key_where_a_job_was_made')],
            },
        ),
    ]
