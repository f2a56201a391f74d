"""Schedules and their ticks."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import runtime_jobs.identifiers


class Migration(migrations.Migration):
    dependencies = [
        ('orchestrator', '0024_replays'),
        ('runtime_jobs', '0026_packs'),
    ]

    operations = [
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
                'constraints': [
                    models.UniqueConstraint(fields=('organization', 'name'), name='one_schedule_per_name'),
                    models.CheckConstraint(condition=models.Q(('status', 'active'), ('next_at__isnull', True), _connector='OR'), name='no_next_time_while_paused'),
                ],
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
                'indexes': [
                    models.Index(fields=['schedule', '-id'], name='ticks_of_schedule'),
                    models.Index(fields=['created_at'], name='schedule_ticks_by_age'),
                ],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('is_manual', False)), fields=('schedule', 'due_at'), name='one_tick_per_time'),
                ],
            },
        ),
    ]
