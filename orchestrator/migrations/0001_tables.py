"""The tables of the interfaces, of deliveries, evidence and housekeeping."""

from datetime import timedelta
from typing import Any

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
import runtime_jobs.db_functions
import runtime_jobs.identifiers
from django.db import migrations, models


# Partitioned by the day of their expiry.
USED_TOKENS = """
CREATE TABLE actions_used_tokens (
    expires_at timestamptz NOT NULL,
    jti varchar(128) COLLATE "C" NOT NULL,
    runner_id bigint NOT NULL,
    job_id bigint NOT NULL,
    used_at timestamptz NOT NULL,
    PRIMARY KEY (expires_at, jti)
) PARTITION BY RANGE (expires_at)
"""
DAYS = 8


def create_partitions(_apps: Any, schema_editor: Any) -> None:
    """Create the partitions of the next days. `orchestrator.job_tokens.partitions` creates the later ones."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date")
        (today,) = cursor.fetchone()
        for number in range(DAYS):
            day = today + timedelta(days=number)
            cursor.execute(
                f"CREATE TABLE actions_used_tokens_{day:%Y%m%d} PARTITION OF actions_used_tokens"
                f" FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day + timedelta(days=1)} 00:00:00+00')"
            )


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('runtime_jobs', '0001_tables'),
        ('workers', '0001_tables'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditBundle',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('org_slug', models.CharField(max_length=63)),
                ('job_ulid', models.CharField(max_length=30, unique=True)),
                ('since', models.DateTimeField()),
                ('until', models.DateTimeField()),
                ('byte_count', models.BigIntegerField()),
                ('sha256', models.CharField(max_length=64)),
                ('key_id', models.CharField(max_length=64)),
                ('lines', models.JSONField()),
                ('written_at', models.DateTimeField()),
            ],
            options={
                'verbose_name': 'audit bundle',
                'db_table': 'audit_bundles',
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='ClockBeat',
            fields=[
                ('id', models.SmallAutoField(primary_key=True, serialize=False)),
                ('leader', models.CharField(max_length=100)),
                ('beat_at', models.DateTimeField()),
                ('term', models.BigIntegerField(db_default=0)),
                ('backend_pid', models.IntegerField(null=True)),
                ('backend_started_at', models.DateTimeField(null=True)),
                ('released_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'clock_beats',
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('delivery_ulid', models.CharField(default=runtime_jobs.identifiers.new_delivery_id, editable=False, max_length=30, unique=True)),
                ('org_slug', models.CharField(max_length=63, verbose_name='organization')),
                ('recipients', django.contrib.postgres.fields.ArrayField(base_field=models.EmailField(max_length=254), default=list, size=None)),
                ('event_id', models.UUIDField()),
                ('event_type', models.CharField(max_length=60)),
                ('job_type', models.CharField(blank=True, max_length=50)),
                ('job_uuid', models.UUIDField(null=True)),
                ('body', models.TextField()),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('succeeded', 'Succeeded'), ('dead', 'Dead')], default='pending', max_length=10)),
                ('round_tries', models.PositiveSmallIntegerField(db_default=0, default=0)),
                ('tries', models.PositiveIntegerField(db_default=0, default=0)),
                ('due_at', models.DateTimeField(null=True, verbose_name='due')),
                ('claimed_until', models.DateTimeField(null=True)),
                ('claim_count', models.BigIntegerField(db_default=0, default=0)),
                ('last_error', models.CharField(blank=True, db_default='', max_length=300)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('finished_at', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'db_table': 'deliveries',
                'indexes': [models.Index(fields=['created_at'], name='deliveries_by_age')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('due_at__isnull', False), ('finished_at__isnull', True), ('status', 'pending')), models.Q(models.Q(('status', 'pending'), _negated=True), ('due_at__isnull', True), ('finished_at__isnull', False)), _connector='OR'), name='due_while_pending')],
            },
        ),
        migrations.CreateModel(
            name='DispatchPosition',
            fields=[
                ('id', models.SmallAutoField(primary_key=True, serialize=False)),
                ('stamp', runtime_jobs.db_functions.TransactionId()),
                ('kind', models.SmallIntegerField(default=0)),
                ('event_id', models.BigIntegerField(default=0)),
                ('beat_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'dispatch_position',
            },
        ),
        migrations.CreateModel(
            name='EvidenceChain',
            fields=[
                ('org_slug', models.CharField(max_length=63, primary_key=True, serialize=False)),
                ('events', models.BigIntegerField(default=0)),
                ('head', models.CharField(blank=True, max_length=64)),
                ('deleted_events', models.BigIntegerField(default=0)),
                ('deleted_head', models.CharField(blank=True, max_length=64)),
                ('checkpoints', models.BigIntegerField(default=0)),
                ('checkpoint_sha256', models.CharField(blank=True, max_length=64)),
                ('checkpointed_events', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'evidence_chains',
            },
        ),
        migrations.CreateModel(
            name='EvidencePosition',
            fields=[
                ('name', models.CharField(max_length=20, primary_key=True, serialize=False)),
                ('stamp', runtime_jobs.db_functions.TransactionId()),
                ('event_id', models.BigIntegerField()),
                ('passed_at', models.DateTimeField(null=True)),
                ('requested_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'evidence_positions',
            },
        ),
        migrations.CreateModel(
            name='ImageUsage',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='runtime_jobs.organization')),
                ('bytes', models.BigIntegerField()),
            ],
            options={
                'db_table': 'image_usage',
            },
        ),
        migrations.CreateModel(
            name='IncidentMode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('org_slug', models.CharField(max_length=63, unique=True)),
                ('reason', models.CharField(max_length=500)),
                ('begun_at', models.DateTimeField()),
                ('begun_by', models.CharField(max_length=200)),
                ('until', models.DateTimeField()),
            ],
            options={
                'db_table': 'incident_modes',
            },
        ),
        migrations.CreateModel(
            name='MetricsPosition',
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
            name='Report',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('git_hash', models.CharField(blank=True, max_length=40)),
                ('adapter', models.CharField(choices=[('magic', 'Magic'), ('json', 'Json'), ('rust', 'Rust'), ('rust_bench', 'Rust Bench'), ('rust_criterion', 'Rust Criterion'), ('cpp', 'Cpp'), ('cpp_google', 'Cpp Google'), ('go', 'Go'), ('go_bench', 'Go Bench'), ('python', 'Python'), ('python_pytest', 'Python Pytest'), ('shell', 'Shell'), ('shell_hyperfine', 'Shell Hyperfine')], default='magic', max_length=30)),
                ('average', models.CharField(blank=True, choices=[('mean', 'Mean'), ('median', 'Median')], max_length=10)),
                ('fold', models.CharField(blank=True, choices=[('min', 'Min'), ('max', 'Max'), ('mean', 'Mean'), ('median', 'Median')], max_length=10)),
                ('start_time', models.DateTimeField()),
                ('end_time', models.DateTimeField()),
                ('idempotency_key', models.UUIDField(null=True)),
                ('created_by', models.CharField(blank=True, max_length=200)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'result_reports',
            },
        ),
        migrations.CreateModel(
            name='SigningKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key_id', models.CharField(max_length=64, unique=True)),
                ('public_pem', models.TextField()),
                ('created_at', models.DateTimeField()),
                ('retired_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'signing_keys',
                'default_permissions': ('view', 'change'),
            },
        ),
        migrations.CreateModel(
            name='TokenChain',
            fields=[
                ('job_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('fence', models.BigIntegerField()),
                ('number', models.PositiveIntegerField()),
            ],
            options={
                'db_table': 'actions_token_chains',
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(USED_TOKENS),
                migrations.RunPython(create_partitions),
            ],
            state_operations=[
                migrations.CreateModel(
                    name='UsedToken',
                    fields=[
                        ('pk', models.CompositePrimaryKey('expires_at', 'jti', blank=True, editable=False, primary_key=True, serialize=False)),
                        ('expires_at', models.DateTimeField()),
                        ('jti', models.CharField(max_length=128)),
                        ('runner_id', models.BigIntegerField()),
                        ('job_id', models.BigIntegerField()),
                        ('used_at', models.DateTimeField()),
                    ],
                    options={
                        'db_table': 'actions_used_tokens',
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name='QuotaOverview',
            fields=[
            ],
            options={
                'verbose_name': 'quota',
                'proxy': True,
                'default_permissions': ('view',),
                'indexes': [],
                'constraints': [],
            },
            bases=('runtime_jobs.organization',),
        ),
        migrations.CreateModel(
            name='Benchmark',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=1024)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'result_benchmarks',
                'constraints': [models.UniqueConstraint(fields=('project', 'name'), name='one_benchmark_per_name'), models.UniqueConstraint(fields=('project', 'slug'), name='one_benchmark_per_slug')],
            },
        ),
        migrations.CreateModel(
            name='BlobUpload',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('parts', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), default=list, size=None)),
                ('size', models.BigIntegerField(default=0)),
                ('is_completing', models.BooleanField(default=False)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_uploads',
            },
        ),
        migrations.CreateModel(
            name='Branch',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=256)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'verbose_name_plural': 'branches',
                'db_table': 'result_branches',
                'constraints': [models.UniqueConstraint(fields=('project', 'name'), name='one_branch_per_name'), models.UniqueConstraint(fields=('project', 'slug'), name='one_branch_per_slug')],
            },
        ),
        migrations.CreateModel(
            name='BulkAction',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('bulk_action_ulid', models.CharField(default=runtime_jobs.identifiers.new_bulk_action_id, editable=False, max_length=30, unique=True, verbose_name='bulk action')),
                ('action', models.CharField(max_length=20)),
                ('filters', models.JSONField(verbose_name='filter')),
                ('reason', models.CharField(max_length=500)),
                ('actor_kind', models.CharField(max_length=20)),
                ('actor_name', models.CharField(max_length=200)),
                ('source_address', models.GenericIPAddressField(null=True)),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('running', 'Running'), ('aborting', 'Aborting'), ('aborted', 'Aborted'), ('completed', 'Completed')], default='pending', max_length=10)),
                ('total', models.PositiveIntegerField()),
                ('done', models.PositiveIntegerField(default=0)),
                ('refused', models.PositiveIntegerField(default=0)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('started_at', models.DateTimeField(null=True, verbose_name='started')),
                ('advanced_at', models.DateTimeField(null=True, verbose_name='last progress')),
                ('finished_at', models.DateTimeField(null=True, verbose_name='finished')),
                ('aborted_by', models.CharField(blank=True, max_length=200)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='bulk_actions', to='runtime_jobs.organization')),
            ],
            options={
                'db_table': 'bulk_actions',
                'indexes': [models.Index(models.OrderBy(models.F('advanced_at'), nulls_first=True), condition=models.Q(('finished_at__isnull', True)), name='bulk_actions_open'), models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['finished_at'], name='bulk_actions_by_age')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', True), ('status__in', ('pending', 'running', 'aborting'))), models.Q(models.Q(('status__in', ('pending', 'running', 'aborting')), _negated=True), ('finished_at__isnull', False)), _connector='OR'), name='finished_if_ended'), models.CheckConstraint(condition=models.Q(('total__gte', django.db.models.expressions.CombinedExpression(models.F('done'), '+', models.F('refused')))), name='no_target_counts_twice')],
            },
        ),
        migrations.CreateModel(
            name='BulkTarget',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('subject_ulid', models.CharField(max_length=30)),
                ('outcome', models.CharField(choices=[('pending', 'Pending'), ('done', 'Done'), ('refused', 'Refused')], db_default='pending', default='pending', max_length=10)),
                ('error_code', models.CharField(blank=True, db_default='', max_length=60)),
                ('detail', models.CharField(blank=True, db_default='', max_length=500)),
                ('finished_at', models.DateTimeField(null=True)),
                ('bulk_action', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='targets', to='orchestrator.bulkaction')),
            ],
            options={
                'db_table': 'bulk_targets',
                'indexes': [models.Index(fields=['bulk_action', 'outcome', 'id'], name='targets_of_bulk_action')],
            },
        ),
        migrations.CreateModel(
            name='Checkpoint',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('org_slug', models.CharField(blank=True, max_length=63)),
                ('number', models.BigIntegerField()),
                ('created_at', models.DateTimeField()),
                ('sha256', models.CharField(max_length=64)),
                ('envelope', models.JSONField()),
                ('filed_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'evidence_checkpoints',
                'default_permissions': ('view',),
                'indexes': [models.Index(condition=models.Q(('filed_at', None)), fields=['id'], name='checkpoints_to_file')],
                'constraints': [models.UniqueConstraint(fields=('org_slug', 'number'), name='one_checkpoint_per_number')],
            },
        ),
        migrations.CreateModel(
            name='CheckpointJob',
            fields=[
                ('job_ulid', models.CharField(max_length=30, primary_key=True, serialize=False)),
                ('seq', models.BigIntegerField()),
                ('head', models.CharField(max_length=64)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('checkpoint', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='orchestrator.checkpoint')),
            ],
            options={
                'db_table': 'evidence_checkpoint_jobs',
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
            name='DeliveryTry',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('number', models.PositiveIntegerField()),
                ('started_at', models.DateTimeField()),
                ('duration_ms', models.PositiveIntegerField(verbose_name='duration (ms)')),
                ('status_code', models.PositiveSmallIntegerField(null=True)),
                ('is_success', models.BooleanField()),
                ('answer', models.TextField(blank=True)),
                ('sentence', models.CharField(max_length=300)),
                ('delivery', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='all_tries', to='orchestrator.delivery')),
            ],
            options={
                'verbose_name_plural': 'delivery tries',
                'db_table': 'delivery_tries',
                'indexes': [models.Index(fields=['started_at'], name='delivery_tries_by_age')],
                'constraints': [models.UniqueConstraint(fields=('delivery', 'number'), name='one_try_per_number')],
            },
        ),
        migrations.CreateModel(
            name='HousekeepingTask',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(max_length=63)),
                ('subject', models.CharField(blank=True, max_length=200)),
                ('due_at', models.DateTimeField(null=True, verbose_name='due')),
                ('requested_count', models.BigIntegerField(db_default=1, default=1)),
                ('claim_count', models.BigIntegerField(db_default=0, default=0)),
                ('claimed_by', models.CharField(blank=True, db_default='', max_length=100)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('failures', models.PositiveIntegerField(db_default=0, default=0)),
                ('last_error', models.CharField(blank=True, db_default='', max_length=2000)),
                ('failed_at', models.DateTimeField(null=True, verbose_name='last failure')),
                ('succeeded_at', models.DateTimeField(null=True, verbose_name='last success')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'housekeeping_tasks',
                'indexes': [models.Index(condition=models.Q(('due_at__isnull', False)), fields=['due_at'], name='housekeeping_tasks_by_due_time'), models.Index(condition=models.Q(('failures__gt', 0)), fields=['failures'], name='housekeeping_tasks_failing')],
                'constraints': [models.UniqueConstraint(fields=('kind', 'subject'), name='one_housekeeping_task_per_subject')],
            },
        ),
        migrations.CreateModel(
            name='ImageBlob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=136, unique=True)),
                ('size', models.BigIntegerField()),
                ('file', models.CharField(max_length=255)),
                ('used_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'image_blobs',
                'indexes': [models.Index(fields=['file'], name='image_blobs_by_file')],
            },
        ),
        migrations.CreateModel(
            name='ImageManifest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=136)),
                ('media_type', models.CharField(max_length=255)),
                ('artifact_type', models.CharField(blank=True, max_length=255)),
                ('subject', models.CharField(blank=True, max_length=136)),
                ('annotations', models.BinaryField(null=True)),
                ('pushed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('blob', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='manifests', to='orchestrator.imageblob')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_manifests',
                'indexes': [models.Index(condition=models.Q(('subject', ''), _negated=True), fields=['project', 'subject', 'id'], name='image_referrers')],
                'constraints': [models.UniqueConstraint(fields=('project', 'digest'), name='one_manifest_per_digest')],
            },
        ),
        migrations.CreateModel(
            name='ImageTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(db_collation='C', max_length=128)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('manifest', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tags', to='orchestrator.imagemanifest')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_tags',
                'constraints': [models.UniqueConstraint(fields=('project', 'name'), name='one_tag_per_name')],
            },
        ),
        migrations.CreateModel(
            name='Incident',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('incident_ulid', models.CharField(default=runtime_jobs.identifiers.new_incident_id, editable=False, max_length=30, unique=True)),
                ('kind', models.CharField(choices=[('breaker', 'Breaker'), ('job', 'Job'), ('replay', 'Replay'), ('webhook', 'Webhook'), ('worker', 'Worker')], max_length=20)),
                ('org_slug', models.CharField(blank=True, max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('job_ulid', models.CharField(max_length=30, null=True)),
                ('webhook_ulid', models.CharField(max_length=30, null=True)),
                ('worker_ulid', models.CharField(max_length=30, null=True)),
                ('reason', models.CharField(blank=True, db_default='', default='', max_length=40)),
                ('summary', models.CharField(max_length=500)),
                ('opened_at', models.DateTimeField()),
                ('acknowledged_at', models.DateTimeField(null=True)),
                ('acknowledged_by', models.CharField(blank=True, db_default='', default='', max_length=200)),
                ('resolved_at', models.DateTimeField(null=True)),
                ('resolved_by', models.CharField(blank=True, max_length=200)),
                ('resolution', models.CharField(blank=True, db_default='', default='', max_length=500)),
            ],
            options={
                'db_table': 'incidents',
                'indexes': [models.Index(condition=models.Q(('resolved_at', None)), fields=['org_slug', 'job_type'], name='incidents_open'), models.Index(condition=models.Q(('job_ulid__isnull', False)), fields=['job_ulid'], name='incidents_of_jobs')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('job_ulid__isnull', False), ('resolved_at', None)), fields=('job_ulid', 'kind'), name='one_unresolved_incident_per_job'), models.UniqueConstraint(condition=models.Q(('resolved_at', None), ('webhook_ulid__isnull', False)), fields=('webhook_ulid',), name='one_unresolved_incident_per_webhook'), models.UniqueConstraint(condition=models.Q(('resolved_at', None), ('worker_ulid__isnull', False)), fields=('worker_ulid',), name='one_unresolved_incident_per_worker')],
            },
        ),
        migrations.CreateModel(
            name='Measure',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=64)),
                ('units', models.CharField(max_length=64)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'result_measures',
                'constraints': [models.UniqueConstraint(fields=('project', 'name'), name='one_measure_per_name'), models.UniqueConstraint(fields=('project', 'slug'), name='one_measure_per_slug')],
            },
        ),
        migrations.CreateModel(
            name='NotificationRule',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('rule_ulid', models.CharField(default=runtime_jobs.identifiers.new_rule_id, editable=False, max_length=30, unique=True)),
                ('name', models.CharField(max_length=100)),
                ('is_enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('event_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=60), blank=True, default=list, help_text='At least one.', size=None)),
                ('job_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), blank=True, default=list, help_text='Empty: jobs of all types, and events without a job.', size=None)),
                ('projects', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), blank=True, default=list, help_text='Slugs. Empty: all projects, and events without a job.', size=None)),
                ('failure_classes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), blank=True, default=list, help_text='Empty: every event; otherwise only failures of these classes.', size=None)),
                ('priority_from', models.IntegerField(blank=True, help_text='Empty: any priority.', null=True, verbose_name='priority from')),
                ('recipients', django.contrib.postgres.fields.ArrayField(base_field=models.EmailField(max_length=254), blank=True, default=list, help_text='Addresses of mail.', size=None)),
                ('gather_seconds', models.PositiveIntegerField(default=60, verbose_name='gather (seconds)')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_by', models.CharField(max_length=200)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notification_rules', to='runtime_jobs.organization')),
            ],
            options={
                'db_table': 'notification_rules',
                'constraints': [models.UniqueConstraint(fields=('organization', 'name'), name='one_notification_rule_per_name')],
            },
        ),
        migrations.CreateModel(
            name='GatheredNotification',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('event_count', models.PositiveIntegerField(default=1)),
                ('first_event_at', models.DateTimeField()),
                ('last_event_at', models.DateTimeField()),
                ('last_event', models.JSONField()),
                ('due_at', models.DateTimeField()),
                ('rule', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='gathered', to='orchestrator.notificationrule')),
            ],
            options={
                'db_table': 'gathered_notifications',
                'indexes': [models.Index(fields=['due_at'], name='gathered_notifications_due')],
                'constraints': [models.UniqueConstraint(fields=('rule', 'key'), name='one_gathered_notification_per_key')],
            },
        ),
        migrations.CreateModel(
            name='OperatorEventLink',
            fields=[
                ('event_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('org_slug', models.CharField(max_length=63)),
                ('seq', models.BigIntegerField()),
                ('prev_hash', models.CharField(blank=True, max_length=64)),
                ('hash', models.CharField(max_length=64)),
            ],
            options={
                'db_table': 'operator_event_links',
                'constraints': [models.UniqueConstraint(fields=('org_slug', 'seq'), name='one_operator_event_per_seq')],
            },
        ),
        migrations.CreateModel(
            name='Replay',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('job_ulid', models.CharField(max_length=30, unique=True)),
                ('replay_of_ulid', models.CharField(max_length=30)),
                ('attempt_ulid', models.CharField(max_length=30)),
                ('org_slug', models.CharField(max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('is_sealed', models.BooleanField(verbose_name='sealed')),
                ('reason', models.CharField(max_length=500)),
                ('requested_by', models.CharField(max_length=200)),
                ('caveats', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=400), default=list, size=None)),
                ('expected', models.JSONField()),
                ('found', models.JSONField(null=True)),
                ('verdict', models.CharField(choices=[('match', 'Match'), ('diverged', 'Diverged'), ('unverifiable', 'Unverifiable')], max_length=12, null=True)),
                ('difference', models.JSONField(null=True)),
                ('reasons', models.JSONField(default=list)),
                ('notes', models.JSONField(default=list)),
                ('created_at', models.DateTimeField()),
                ('decided_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'job_replays',
                'default_permissions': ('view',),
                'indexes': [models.Index(condition=models.Q(('verdict', None)), fields=['id'], name='replays_undecided'), models.Index(models.F('org_slug'), models.OrderBy(models.F('id'), descending=True), name='replays_of_organization')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('decided_at', None), ('found', None), ('verdict', None)), models.Q(('decided_at__isnull', False), ('found__isnull', False), ('verdict__isnull', False)), _connector='OR'), name='replay_verdict_is_whole')],
            },
        ),
        migrations.CreateModel(
            name='ReportResult',
            fields=[
                ('report', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='result', serialize=False, to='orchestrator.report')),
                ('start_time', models.DateTimeField(null=True)),
                ('end_time', models.DateTimeField(null=True)),
                ('duration_seconds', models.PositiveIntegerField(null=True)),
                ('metric_count', models.PositiveIntegerField(default=0)),
                ('error', models.TextField(blank=True)),
                ('read_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'result_report_results',
            },
        ),
        migrations.AddField(
            model_name='report',
            name='branch',
            field=models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='reports', to='orchestrator.branch'),
        ),
        migrations.AddField(
            model_name='report',
            name='job',
            field=models.OneToOneField(db_column='job_ulid', db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='report', to='runtime_jobs.job', to_field='job_ulid'),
        ),
        migrations.AddField(
            model_name='report',
            name='project',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='reports', to='runtime_jobs.project'),
        ),
        migrations.AddField(
            model_name='report',
            name='spec',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reports', to='workers.hardwarespec'),
        ),
        migrations.CreateModel(
            name='Metric',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('iteration', models.PositiveIntegerField()),
                ('value', models.FloatField()),
                ('lower_value', models.FloatField(null=True)),
                ('upper_value', models.FloatField(null=True)),
                ('benchmark', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.RESTRICT, related_name='metrics', to='orchestrator.benchmark')),
                ('measure', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.RESTRICT, related_name='metrics', to='orchestrator.measure')),
                ('report', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='metrics', to='orchestrator.report')),
            ],
            options={
                'db_table': 'result_metrics',
                'indexes': [models.Index(fields=['benchmark', 'measure', '-report'], name='metrics_of_benchmark')],
                'constraints': [models.UniqueConstraint(fields=('report', 'iteration', 'benchmark', 'measure'), name='one_metric_per_iteration')],
            },
        ),
        migrations.CreateModel(
            name='RepositoryBlob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('used_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('blob', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='repositories', to='orchestrator.imageblob')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_repository_blobs',
                'constraints': [models.UniqueConstraint(fields=('project', 'blob'), name='one_blob_per_repository')],
            },
        ),
        migrations.CreateModel(
            name='ManifestBlob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('manifest', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='blobs', to='orchestrator.imagemanifest')),
                ('repository_blob', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='manifests', to='orchestrator.repositoryblob')),
            ],
            options={
                'db_table': 'image_manifest_blobs',
                'constraints': [models.UniqueConstraint(fields=('manifest', 'repository_blob'), name='one_reference_per_manifest')],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('run_id', models.CharField(max_length=64, unique=True)),
                ('job_id', models.CharField(max_length=30)),
                ('fence', models.BigIntegerField(null=True)),
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
                'constraints': [models.UniqueConstraint(fields=('job_id', 'fence'), name='one_run_per_lease', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='Schedule',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('schedule_ulid', models.CharField(default=runtime_jobs.identifiers.new_schedule_id, editable=False, max_length=30, unique=True)),
                ('name', models.CharField(max_length=100)),
                ('cron', models.CharField(max_length=200)),
                ('time_zone', models.CharField(max_length=64)),
                ('job', models.JSONField()),
                ('missed', models.CharField(choices=[('latest', 'Latest'), ('all', 'All'), ('skip', 'Skip')], default='latest', max_length=10, verbose_name='missed times')),
                ('overlap', models.CharField(choices=[('allow', 'Allow'), ('queue', 'Queue'), ('skip', 'Skip'), ('cancel', 'Cancel')], default='allow', max_length=10)),
                ('status', models.CharField(choices=[('active', 'Active'), ('paused', 'Paused')], default='active', max_length=10)),
                ('next_at', models.DateTimeField(null=True, verbose_name='next time')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_by', models.CharField(max_length=200)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='schedules', to='runtime_jobs.organization')),
            ],
            options={
                'db_table': 'schedules',
                'indexes': [models.Index(condition=models.Q(('next_at__isnull', False)), fields=['next_at'], name='schedules_due')],
                'constraints': [models.UniqueConstraint(fields=('organization', 'name'), name='one_schedule_per_name'), models.CheckConstraint(condition=models.Q(('status', 'active'), ('next_at__isnull', True), _connector='OR'), name='no_next_time_while_paused')],
            },
        ),
        migrations.CreateModel(
            name='ScheduleTick',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('due_at', models.DateTimeField(verbose_name='time')),
                ('outcome', models.CharField(choices=[('submitted', 'Submitted'), ('refused', 'Refused'), ('overlapped', 'Overlapped'), ('missed', 'Missed')], max_length=10)),
                ('is_manual', models.BooleanField(default=False, verbose_name='requested by hand')),
                ('job_ulid', models.CharField(max_length=30, null=True, verbose_name='job')),
                ('missed_before', models.DateTimeField(null=True)),
                ('error_code', models.CharField(blank=True, max_length=60)),
                ('message', models.CharField(blank=True, max_length=500)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('schedule', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='ticks', to='orchestrator.schedule')),
            ],
            options={
                'db_table': 'schedule_ticks',
                'indexes': [models.Index(fields=['schedule', '-id'], name='ticks_of_schedule'), models.Index(fields=['created_at'], name='schedule_ticks_by_age')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('is_manual', False)), fields=('schedule', 'due_at'), name='one_tick_per_time')],
            },
        ),
        migrations.CreateModel(
            name='Testbed',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=64)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
                ('spec', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='testbeds', to='workers.hardwarespec')),
            ],
            options={
                'db_table': 'result_testbeds',
                'constraints': [models.UniqueConstraint(fields=('project', 'name'), name='one_testbed_per_name'), models.UniqueConstraint(fields=('project', 'slug'), name='one_testbed_per_slug')],
            },
        ),
        migrations.AddField(
            model_name='report',
            name='testbed',
            field=models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='reports', to='orchestrator.testbed'),
        ),
        migrations.CreateModel(
            name='ThrottleWindow',
            fields=[
                ('key', models.BinaryField(max_length=32, primary_key=True, serialize=False)),
                ('kind', models.CharField(help_text='What is counted.', max_length=40)),
                ('current', models.BigIntegerField()),
                ('previous', models.BigIntegerField()),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(help_text='From then on the row has no effect.')),
            ],
            options={
                'db_table': 'throttle_windows',
                'indexes': [models.Index(fields=['expires_at'], name='throttle_windows_by_age')],
            },
        ),
        migrations.CreateModel(
            name='Webhook',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('webhook_ulid', models.CharField(default=runtime_jobs.identifiers.new_webhook_id, editable=False, max_length=30, unique=True)),
                ('url', models.CharField(max_length=2048, verbose_name='URL')),
                ('description', models.CharField(blank=True, max_length=200)),
                ('event_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=60), blank=True, default=list, help_text='Empty: all events.', size=None)),
                ('job_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), blank=True, default=list, help_text='Empty: jobs of all types, and events without a job.', size=None)),
                ('status', models.CharField(choices=[('active', 'Active'), ('paused', 'Paused'), ('disabled', 'Disabled'), ('deleted', 'Deleted')], default='active', max_length=10)),
                ('status_reason', models.CharField(blank=True, max_length=300)),
                ('sealed_secret', models.BinaryField(null=True)),
                ('sealed_former_secret', models.BinaryField(null=True)),
                ('former_secret_until', models.DateTimeField(null=True)),
                ('failing_since', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_by', models.CharField(max_length=200)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to='runtime_jobs.organization')),
            ],
            options={
                'db_table': 'webhooks',
            },
        ),
        migrations.AddField(
            model_name='notificationrule',
            name='webhook',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='notification_rules', to='orchestrator.webhook'),
        ),
        migrations.AddField(
            model_name='delivery',
            name='webhook',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='orchestrator.webhook'),
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
                ('outcome', models.CharField(choices=[('created', 'Created'), ('accepted', 'Accepted'), ('duplicate', 'Duplicate'), ('ignored', 'Ignored'), ('refused', 'Refused')], max_length=10)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('event_key', models.CharField(max_length=64, null=True)),
                ('batch_ulid', models.CharField(max_length=30, null=True)),
                ('job_ulid', models.CharField(max_length=30, null=True)),
                ('source_address', models.GenericIPAddressField(null=True)),
                ('received_at', models.DateTimeField()),
            ],
            options={
                'verbose_name': 'GitHub delivery',
                'verbose_name_plural': 'GitHub deliveries',
                'db_table': 'webhook_deliveries',
                'indexes': [models.Index(fields=['received_at'], name='webhook_deliveries_by_age')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('event_key__isnull', False)), fields=('org_slug', 'project_slug', 'event_key'), name='one_job_per_event'), models.UniqueConstraint(condition=models.Q(('delivery_id__isnull', False), models.Q(('org_slug', ''), _negated=True)), fields=('org_slug', 'project_slug', 'delivery_id'), name='one_row_per_delivery'), models.CheckConstraint(condition=models.Q(models.Q(('batch_ulid__isnull', False), ('event_key__isnull', False), ('job_ulid__isnull', False), ('outcome', 'created')), models.Q(models.Q(('outcome', 'created'), _negated=True), ('event_key__isnull', True)), _connector='OR'), name='a_key_where_a_job_was_made')],
            },
        ),
        migrations.AddIndex(
            model_name='report',
            index=models.Index(fields=['project', '-id'], name='reports_of_project'),
        ),
        migrations.AddConstraint(
            model_name='report',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key__isnull', False)), fields=('project', 'idempotency_key'), name='one_report_per_idempotency_key'),
        ),
        migrations.AddConstraint(
            model_name='notificationrule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('recipients__len__gt', 0), ('webhook__isnull', True)), models.Q(('recipients__len', 0), ('webhook__isnull', False)), _connector='OR'), name='a_rule_has_one_way'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('due_at__isnull', False)), fields=['webhook', 'due_at'], name='deliveries_due'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('claimed_until__isnull', False)), fields=['webhook'], name='deliveries_being_sent'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['webhook', '-id'], name='deliveries_of_webhook'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('status', 'dead')), fields=['webhook', 'id'], name='deliveries_dead'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('webhook', 'event_id'), name='one_delivery_per_event'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('recipients__len__gt', 0), ('webhook__isnull', True)), models.Q(('recipients__len', 0), ('webhook__isnull', False)), _connector='OR'), name='a_delivery_has_one_way'),
        ),
    ]
