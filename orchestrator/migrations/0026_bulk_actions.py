"""Bulk actions and their targets."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import runtime_jobs.identifiers


class Migration(migrations.Migration):
    dependencies = [('orchestrator', '0025_schedules')]

    operations = [
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
                'indexes': [
                    models.Index(models.OrderBy(models.F('advanced_at'), nulls_first=True), condition=models.Q(('finished_at__isnull', True)), name='bulk_actions_open'),
                    models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['finished_at'], name='bulk_actions_by_age'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', True), ('status__in', ('pending', 'running', 'aborting'))), models.Q(models.Q(('status__in', ('pending', 'running', 'aborting')), _negated=True), ('finished_at__isnull', False)), _connector='OR'), name='finished_if_ended'),
                    models.CheckConstraint(condition=models.Q(('total__gte', models.expressions.CombinedExpression(models.F('done'), '+', models.F('refused')))), name='no_target_counts_twice'),
                ],
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
    ]
