"""The tables of leases, limits and lanes."""

import django.contrib.postgres.fields
import django.db.models.deletion
import runtime_jobs.identifiers
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('runtime_jobs', '0001_tables'),
        ('workers', '0001_tables'),
    ]

    operations = [
        migrations.CreateModel(
            name='SubmitQuota',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('org_slug', models.CharField(max_length=63, unique=True)),
                ('max_queued', models.PositiveIntegerField(help_text='As the plan had it at the last count.', null=True)),
                ('room', models.IntegerField(default=0)),
                ('counted_at', models.DateTimeField(null=True)),
                ('recount_at', models.DateTimeField(null=True)),
                ('spent_until', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'submit_quotas',
            },
        ),
        migrations.CreateModel(
            name='Breaker',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('org_slug', models.CharField(max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('state', models.CharField(choices=[('closed', 'Closed'), ('open', 'Open'), ('half_open', 'Half Open')], default='closed', max_length=10)),
                ('opened_at', models.DateTimeField(null=True)),
                ('cool_until', models.DateTimeField(null=True)),
                ('seen_from', models.DateTimeField(null=True)),
                ('limit_id', models.IntegerField(null=True)),
            ],
            options={
                'db_table': 'lane_breakers',
                'constraints': [models.UniqueConstraint(fields=('org_slug', 'job_type'), name='one_breaker')],
            },
        ),
        migrations.CreateModel(
            name='Lane',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('queue_id', models.IntegerField()),
                ('project_slug', models.CharField(max_length=63)),
                ('source_address', models.CharField(blank=True, help_text='Where its jobs are limited by it.', max_length=45)),
                ('concurrency_key', models.CharField(blank=True, max_length=200)),
                ('limits', django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), default=list, size=None)),
            ],
            options={
                'db_table': 'lanes',
                'constraints': [models.UniqueConstraint(fields=('queue_id', 'project_slug', 'source_address', 'concurrency_key'), name='one_lane')],
            },
        ),
        migrations.CreateModel(
            name='LaneGeneration',
            fields=[
                ('number', models.IntegerField(primary_key=True, serialize=False)),
                ('oldest', models.IntegerField()),
                ('began_at', models.BigIntegerField()),
            ],
            options={
                'db_table': 'lane_generations',
            },
        ),
        migrations.CreateModel(
            name='LaneHead',
            fields=[
                ('pk', models.CompositePrimaryKey('lane_id', 'version', blank=True, editable=False, primary_key=True, serialize=False)),
                ('lane_id', models.IntegerField()),
                ('version', models.BigIntegerField(default=0)),
                ('generation', models.IntegerField(default=0)),
                ('queue_id', models.IntegerField()),
                ('head_id', models.BigIntegerField(null=True)),
                ('head_at', models.DateTimeField(null=True)),
                ('scan_from', models.BigIntegerField(default=9223372036854775807)),
                ('blocked_by', models.IntegerField(null=True)),
                ('eligible_at', models.DateTimeField(null=True)),
                ('idle_since', models.DateTimeField(help_text='Empty at least since then; see `prune_idle_lanes`.', null=True)),
            ],
            options={
                'db_table': 'lane_heads',
                'indexes': [models.Index(condition=models.Q(('blocked_by__isnull', True), ('head_id__isnull', False)), fields=['queue_id', 'generation', 'head_at', 'head_id'], name='lane_heads_to_serve'), models.Index(condition=models.Q(('blocked_by__isnull', False)), fields=['blocked_by'], name='lane_heads_blocked'), models.Index(condition=models.Q(('eligible_at__isnull', False)), fields=['eligible_at'], name='lane_heads_due')],
            },
        ),
        migrations.CreateModel(
            name='LaneProfile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('job_type', models.CharField(max_length=50)),
                ('requirements', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), default=list, help_text='Sorted.', size=None)),
                ('least_isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], max_length=20)),
            ],
            options={
                'db_table': 'lane_profiles',
                'constraints': [models.UniqueConstraint(fields=('job_type', 'least_isolation', 'requirements'), name='one_lane_profile')],
            },
        ),
        migrations.CreateModel(
            name='LaneQueue',
            fields=[
                ('pool', models.CharField(max_length=63)),
                ('profile_id', models.IntegerField()),
                ('org_slug', models.CharField(max_length=63)),
                ('priority', models.IntegerField()),
                ('limits', django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), default=list, size=None)),
                ('id', models.AutoField(primary_key=True, serialize=False)),
            ],
            options={
                'db_table': 'lane_queues',
                'indexes': [models.Index(fields=['org_slug', 'pool'], name='lane_queues_of_organization')],
                'constraints': [models.UniqueConstraint(fields=('pool', 'profile_id', 'org_slug', 'priority'), name='one_lane_queue')],
            },
        ),
        migrations.CreateModel(
            name='QueueHead',
            fields=[
                ('pk', models.CompositePrimaryKey('queue_id', 'version', blank=True, editable=False, primary_key=True, serialize=False)),
                ('queue_id', models.IntegerField()),
                ('version', models.BigIntegerField(default=0)),
                ('generation', models.IntegerField(default=0)),
                ('pool', models.CharField(max_length=63)),
                ('profile_id', models.IntegerField()),
                ('head_id', models.BigIntegerField(null=True)),
                ('head_at', models.DateTimeField(null=True)),
                ('tier', models.IntegerField()),
                ('rank', models.FloatField(default=0)),
                ('served_at', models.DateTimeField(null=True)),
                ('blocked_by', models.IntegerField(null=True)),
                ('eligible_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'queue_heads',
                'indexes': [models.Index(models.F('pool'), models.F('profile_id'), models.F('generation'), models.OrderBy(models.F('tier'), descending=True), models.F('rank'), models.F('head_id'), condition=models.Q(('blocked_by__isnull', True), ('head_id__isnull', False)), name='queue_heads_to_serve'), models.Index(condition=models.Q(('blocked_by__isnull', True), ('head_id__isnull', False)), fields=['pool', 'generation', 'rank'], name='queue_heads_by_rank'), models.Index(condition=models.Q(('eligible_at__isnull', False)), fields=['eligible_at'], name='queue_heads_due'), models.Index(condition=models.Q(('blocked_by__isnull', False)), fields=['blocked_by'], name='queue_heads_blocked')],
            },
        ),
        migrations.CreateModel(
            name='LaneShare',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('pool', models.CharField(max_length=63)),
                ('org_slug', models.CharField(max_length=63)),
                ('weight', models.PositiveIntegerField(default=1)),
                ('served', models.FloatField(default=0)),
                ('lead', models.FloatField(db_default=0)),
            ],
            options={
                'db_table': 'lane_shares',
                'constraints': [models.UniqueConstraint(fields=('pool', 'org_slug'), name='one_lane_share')],
            },
        ),
        migrations.CreateModel(
            name='Limit',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('organization', 'Organization'), ('plan', 'Plan'), ('project', 'Project'), ('emergency', 'Emergency'), ('source_address', 'Source Address'), ('concurrency', 'Concurrency'), ('rate', 'Rate'), ('pause', 'Pause'), ('throttle', 'Throttle'), ('breaker', 'Breaker')], max_length=20)),
                ('scope', models.CharField(choices=[('organization', 'Organization'), ('project', 'Project'), ('address', 'Address'), ('key', 'Key'), ('pool', 'Pool'), ('job_type', 'Job Type')], default='organization', max_length=20)),
                ('org_slug', models.CharField(blank=True, max_length=63)),
                ('key', models.CharField(max_length=200)),
                ('max_active', models.PositiveIntegerField(null=True)),
                ('per_hour', models.PositiveIntegerField(null=True)),
                ('burst', models.PositiveIntegerField(null=True)),
                ('spent_until', models.DateTimeField(null=True)),
                ('binds_below', models.IntegerField(null=True)),
                ('one_shot', models.BooleanField(default=False)),
                ('until', models.DateTimeField(help_text='Expiry: from then on the limit has no effect.', null=True)),
                ('waiting', models.BooleanField(default=False)),
                ('note', models.CharField(blank=True, max_length=1000)),
                ('set_by', models.CharField(blank=True, max_length=200)),
                ('set_at', models.DateTimeField(null=True)),
                ('version', models.PositiveIntegerField(default=1, help_text="Rises with every change; the API's ETag.")),
            ],
            options={
                'db_table': 'lane_limits',
                'indexes': [models.Index(condition=models.Q(('until__isnull', False)), fields=['until'], name='limits_for_a_while'), models.Index(condition=models.Q(('waiting', True)), fields=['id'], name='limits_waited_for')],
                'constraints': [models.UniqueConstraint(fields=('scope', 'org_slug', 'key', 'kind'), name='one_limit'), models.CheckConstraint(condition=models.Q(models.Q(('max_active__isnull', False), ('per_hour__isnull', True)), models.Q(('burst__gt', 0), ('max_active__isnull', True), ('per_hour__gt', 0)), _connector='OR'), name='limit_of_one_sort')],
            },
        ),
        migrations.CreateModel(
            name='LimitSlot',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('limit_id', models.IntegerField()),
                ('n', models.BigIntegerField()),
                ('job_id', models.BigIntegerField(null=True)),
                ('retired', models.BooleanField(default=False)),
            ],
            options={
                'db_table': 'lane_limit_slots',
                'indexes': [models.Index(condition=models.Q(('job_id__isnull', True), ('retired', False)), fields=['limit_id', 'n'], name='limit_slots_free'), models.Index(condition=models.Q(('job_id__isnull', False)), fields=['job_id'], name='limit_slots_of_job'), models.Index(condition=models.Q(('retired', True)), fields=['limit_id'], name='limit_slots_retired')],
                'constraints': [models.UniqueConstraint(fields=('limit_id', 'n'), name='one_limit_slot')],
            },
        ),
        migrations.CreateModel(
            name='Lease',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('lease_ulid', models.CharField(default=runtime_jobs.identifiers.new_lease_id, editable=False, max_length=30, unique=True)),
                ('pool', models.CharField(max_length=63)),
                ('state', models.CharField(choices=[('granted', 'Granted'), ('active', 'Active'), ('completed', 'Completed'), ('canceled', 'Canceled'), ('released', 'Released'), ('expired', 'Expired'), ('revoked', 'Revoked')], editable=False, max_length=20)),
                ('status', models.GeneratedField(db_persist=True, expression=models.Case(models.When(state__in=('granted', 'active'), then=models.Value('open')), default='state'), output_field=models.CharField(max_length=20))),
                ('fence', models.BigIntegerField()),
                ('session', models.CharField(blank=True, max_length=26)),
                ('ttl_seconds', models.PositiveIntegerField()),
                ('heartbeat_interval_seconds', models.PositiveIntegerField()),
                ('acknowledge_within_seconds', models.PositiveIntegerField()),
                ('leased_at', models.DateTimeField()),
                ('acknowledged_at', models.DateTimeField(null=True)),
                ('last_heartbeat_at', models.DateTimeField(null=True)),
                ('expires_at', models.DateTimeField()),
                ('completed_at', models.DateTimeField(null=True)),
                ('ended_reason', models.CharField(max_length=40, null=True)),
                ('final_digest', models.CharField(max_length=64, null=True)),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='leases', to='runtime_jobs.job', to_field='job_ulid')),
                ('worker', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='leases', to='workers.worker', to_field='worker_id')),
            ],
            options={
                'db_table': 'runtime_worker_leases',
                'indexes': [models.Index(fields=['worker', 'status', 'id'], name='leases_of_worker')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('completed_at__isnull', True)), fields=('job',), name='one_open_lease_per_job'), models.UniqueConstraint(fields=('job', 'fence'), name='one_lease_per_fence')],
            },
        ),
    ]
