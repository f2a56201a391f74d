"""Create the tables of outgoing webhooks and notifications. New tables: the former release does not use them."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.db_functions
import runtime_jobs.identifiers
from django.db import migrations, models

# Events are delivered from here on, also those that occur before the first dispatcher starts.
START = """
INSERT INTO dispatch_position (id, stamp, kind, event_id, beat_at)
VALUES (1, pg_snapshot_xmin(pg_current_snapshot()), 0, 0, clock_timestamp())"""


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0017_incident_mode'),
        ('runtime_jobs', '0022_stamp_of_events'),
    ]

    operations = [
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
                ('webhook', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='notification_rules', to='orchestrator.webhook')),
            ],
            options={
                'db_table': 'notification_rules',
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
                ('webhook', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='orchestrator.webhook')),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'db_table': 'deliveries',
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
        migrations.AddConstraint(
            model_name='notificationrule',
            constraint=models.UniqueConstraint(fields=('organization', 'name'), name='one_notification_rule_per_name'),
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
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['created_at'], name='deliveries_by_age'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('webhook', 'event_id'), name='one_delivery_per_event'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('due_at__isnull', False), ('finished_at__isnull', True), ('status', 'pending')), models.Q(models.Q(('status', 'pending'), _negated=True), ('due_at__isnull', True), ('finished_at__isnull', False)), _connector='OR'), name='due_while_pending'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('recipients__len__gt', 0), ('webhook__isnull', True)), models.Q(('recipients__len', 0), ('webhook__isnull', False)), _connector='OR'), name='a_delivery_has_one_way'),
        ),
        migrations.RunSQL(START, migrations.RunSQL.noop),
    ]
