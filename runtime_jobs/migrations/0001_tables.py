"""The tables of jobs, tenants and their records."""

import django.contrib.postgres.fields
import django.contrib.postgres.functions
import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.fields.json
import django.db.models.functions.comparison
import django.db.models.functions.datetime
import django.db.models.functions.text
import runtime_jobs.db_functions
import runtime_jobs.identifiers
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='DiscardedLogObject',
            fields=[
                ('name', models.CharField(max_length=1024, primary_key=True, serialize=False)),
                ('discarded_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'discarded_log_objects',
            },
        ),
        migrations.CreateModel(
            name='EndedDependency',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('root_job_ulid', models.CharField(max_length=30)),
                ('looked_to', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'runtime_ended_dependencies',
            },
        ),
        migrations.CreateModel(
            name='FollowedJob',
            fields=[
                ('job_ulid', models.CharField(max_length=30, primary_key=True, serialize=False)),
                ('until', models.DateTimeField()),
            ],
            options={
                'db_table': 'followed_jobs',
            },
        ),
        migrations.CreateModel(
            name='IdentityKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kid', models.CharField(max_length=64, unique=True)),
                ('sealed', models.BinaryField()),
                ('public_jwk', models.JSONField()),
                ('created_at', models.DateTimeField()),
                ('signs_from', models.DateTimeField()),
            ],
            options={
                'verbose_name': 'identity key',
                'db_table': 'identity_keys',
            },
        ),
        migrations.CreateModel(
            name='Organization',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(db_default=django.contrib.postgres.functions.RandomUUID(), default=runtime_jobs.identifiers.new_uuid, editable=False)),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('name', models.CharField(blank=True, max_length=200)),
                ('hosted_runtime_analysis', models.BooleanField(default=False)),
                ('egress', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), blank=True, default=list, help_text='Destinations that jobs with network access may reach: host, *.suffix or host:port (default 443).', size=None, verbose_name='egress allowlist')),
                ('followed_priority', models.IntegerField(editable=False, help_text='Priority of the plan that was last applied to queued jobs.', null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('claimed_at', models.DateTimeField(editable=False, help_text='When an organization without an owner got its first member.', null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Plan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('priority', models.IntegerField(default=150, help_text="Priority of the organization's jobs. A higher number is claimed first (free 100, team 200).", validators=[django.core.validators.MaxValueValidator(399)])),
                ('max_timeout_seconds', models.PositiveIntegerField(default=900, help_text='Longest timeout that a job may request.', validators=[django.core.validators.MinValueValidator(1)], verbose_name='max timeout (seconds)')),
                ('default_timeout_seconds', models.PositiveIntegerField(db_default=3600, default=3600, help_text='Timeout of a run (Bencher API) that requests none. The max timeout limits it, too.', validators=[django.core.validators.MinValueValidator(1)], verbose_name='default timeout (seconds)')),
                ('max_active', models.PositiveIntegerField(blank=True, help_text='Running jobs per organization. Jobs with priority 200 or higher count, but are never blocked. Empty: unlimited.', null=True, verbose_name='max concurrency')),
                ('max_queued', models.PositiveIntegerField(blank=True, default=10000, help_text='Queued jobs per organization. Further submits are answered 429. Empty: unlimited.', null=True, validators=[django.core.validators.MinValueValidator(64)], verbose_name='max queued jobs')),
                ('submits_per_minute', models.PositiveIntegerField(blank=True, default=6000, help_text='Submitted jobs per organization and minute. Further submits are answered 429. Empty: unlimited.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(10000000)], verbose_name='submit rate (per minute)')),
                ('submit_burst', models.PositiveIntegerField(db_default=2000, default=2000, help_text='Jobs that may be submitted in one burst. Applies only with a submit rate.', validators=[django.core.validators.MinValueValidator(64)])),
                ('one_per_address', models.BooleanField(default=False, help_text='At most one running job per source IP. For organizations without an owner.', verbose_name='one job per source IP')),
                ('max_stored_bytes', models.BigIntegerField(blank=True, db_default=53687091200, default=53687091200, help_text='Artifacts and caches per organization. Further uploads are answered 402. Empty: unlimited.', null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='max stored bytes')),
                ('max_job_artifacts', models.PositiveIntegerField(blank=True, db_default=1000, default=1000, help_text='Artifacts that the worker of one job uploads. Further ones are answered 429. Empty: unlimited.', null=True, verbose_name='max artifacts per job')),
                ('max_job_artifact_bytes', models.BigIntegerField(blank=True, db_default=10737418240, default=10737418240, help_text='Bytes of these artifacts together. Further ones are answered 429. Empty: unlimited.', null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='max artifact bytes per job')),
                ('weight', models.PositiveIntegerField(default=1, help_text='Share of the organization in pools with the fair-share policy.', validators=[django.core.validators.MinValueValidator(1)], verbose_name='fair-share weight')),
            ],
        ),
        migrations.CreateModel(
            name='Batch',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('batch_ulid', models.CharField(default=runtime_jobs.identifiers.new_batch_id, editable=False, max_length=30, unique=True)),
                ('org_slug', models.CharField(max_length=63)),
                ('project_slug', models.CharField(max_length=63)),
                ('repo_url', models.CharField(max_length=512, null=True)),
                ('git_ref', models.CharField(max_length=255, null=True)),
                ('git_commit', models.CharField(max_length=64, null=True)),
                ('trigger_kind', models.CharField(max_length=20)),
                ('trigger_actor', models.CharField(max_length=200, null=True)),
                ('details', models.JSONField(default=dict)),
                ('rerun_of', models.CharField(help_text='The batch that was run again.', max_length=30, null=True)),
                ('correlation_id', models.CharField(max_length=64)),
                ('cancel_requested_at', models.DateTimeField(null=True)),
                ('cancel_reason', models.CharField(choices=[('requested', 'Requested'), ('batch_canceled', 'Batch Canceled'), ('superseded', 'Superseded'), ('dependency_failed', 'Dependency Failed'), ('timeout', 'Timeout'), ('operator', 'Operator'), ('condition_false', 'Condition False'), ('stopped_by_worker', 'Stopped By Worker')], max_length=30, null=True)),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'batches',
                'db_table': 'runtime_batches',
                'indexes': [models.Index(models.F('org_slug'), models.OrderBy(models.F('id'), descending=True), name='batches_of_organization')],
            },
        ),
        migrations.CreateModel(
            name='IdempotencyKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('principal', models.CharField(max_length=100)),
                ('operation', models.CharField(max_length=200)),
                ('key', models.CharField(max_length=255)),
                ('fingerprint', models.CharField(max_length=64)),
                ('result_id', models.TextField(help_text='Ids; of many jobs, what became of each, as JSON.')),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'idempotency_keys',
                'indexes': [models.Index(fields=['created_at'], name='idempotency_keys_by_age'), models.Index(fields=['key'], name='idempotency_keys_by_key'), django.contrib.postgres.indexes.HashIndex(fields=['result_id'], name='idempotency_keys_by_result')],
                'constraints': [models.UniqueConstraint(fields=('principal', 'operation', 'key'), name='one_use_of_an_idempotency_key')],
            },
        ),
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('job_ulid', models.CharField(default=runtime_jobs.identifiers.new_job_id, editable=False, max_length=30, unique=True)),
                ('org_slug', models.CharField(max_length=63)),
                ('project_slug', models.CharField(max_length=63)),
                ('source_kind', models.CharField(max_length=20, null=True)),
                ('repo_url', models.CharField(max_length=512, null=True)),
                ('repo_owner', models.CharField(max_length=100, null=True)),
                ('repo_name', models.CharField(max_length=100, null=True)),
                ('git_ref', models.CharField(max_length=255, null=True)),
                ('git_commit', models.CharField(max_length=64, null=True)),
                ('pull_request_number', models.BigIntegerField(null=True)),
                ('trigger_kind', models.CharField(max_length=20)),
                ('trigger_actor', models.CharField(max_length=200, null=True)),
                ('working_directory', models.CharField(max_length=1024, null=True)),
                ('command_json', models.JSONField(null=True)),
                ('timeout_seconds', models.PositiveIntegerField(null=True)),
                ('allow_network', models.BooleanField(null=True)),
                ('allow_exec', models.BooleanField(null=True)),
                ('job_type', models.CharField(default='runtime', max_length=50)),
                ('spec', models.JSONField(default=dict)),
                ('result', models.JSONField(null=True)),
                ('priority', models.IntegerField()),
                ('pool', models.CharField(max_length=63)),
                ('lane_id', models.IntegerField(help_text='No foreign key: `leases`, which has `Lane`, imports this package.', null=True)),
                ('concurrency_key', models.CharField(blank=True, help_text='One job of a key runs at a time.', max_length=200)),
                ('limited_by_address', models.BooleanField(default=False, help_text='One job of its source address runs at a time.')),
                ('requirements', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), default=list, size=None)),
                ('excluded_workers', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=30), default=list, size=None)),
                ('payload_digest', models.CharField(max_length=64)),
                ('correlation_id', models.CharField(max_length=64)),
                ('source_address', models.GenericIPAddressField(null=True)),
                ('max_requeues', models.PositiveSmallIntegerField()),
                ('automatic_retries', models.PositiveSmallIntegerField()),
                ('needs_ingest', models.BooleanField()),
                ('complete_beats_cancel', models.BooleanField()),
                ('lease_ttl_seconds', models.PositiveIntegerField()),
                ('heartbeat_interval_seconds', models.PositiveIntegerField()),
                ('acknowledge_within_seconds', models.PositiveIntegerField()),
                ('late_result_seconds', models.PositiveIntegerField(default=0, help_text='A result counts for so long after the lease ended without one.')),
                ('needs_processing', models.BooleanField(default=False, help_text='Its result is read before it succeeds.')),
                ('timeout_grace_seconds', models.PositiveIntegerField(default=60, help_text='Beyond its time limit.')),
                ('is_metered', models.BooleanField(default=False, help_text='Its minutes are billed.')),
                ('least_isolation', models.CharField(max_length=20)),
                ('trace', models.CharField(choices=[('none', 'none'), ('network', 'network'), ('full', 'full')], default='none', max_length=10)),
                ('state', models.CharField(choices=[('blocked', 'Blocked'), ('queued', 'Queued'), ('leased', 'Leased'), ('starting', 'Starting'), ('checking_out', 'Checking Out'), ('executing', 'Executing'), ('uploading', 'Uploading'), ('lost', 'Lost'), ('processing', 'Processing'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('canceled', 'Canceled')], default='queued', editable=False, max_length=20)),
                ('status', models.GeneratedField(db_persist=True, expression=models.Case(models.When(needs_ingest=False, state='succeeded', then=models.Value('succeeded')), models.When(state='blocked', then=models.Value('queued')), models.When(state='queued', then=models.Value('queued')), models.When(state='leased', then=models.Value('queued')), models.When(state='starting', then=models.Value('running')), models.When(state='checking_out', then=models.Value('running')), models.When(state='executing', then=models.Value('running')), models.When(state='uploading', then=models.Value('running')), models.When(state='lost', then=models.Value('running')), models.When(state='processing', then=models.Value('running')), models.When(state='succeeded', then=models.Value('uploaded')), models.When(state='failed', then=models.Value('failed')), models.When(state='canceled', then=models.Value('canceled'))), output_field=models.CharField(max_length=20))),
                ('fence', models.BigIntegerField(default=0, help_text='Rises with every lease.')),
                ('requeue_count', models.PositiveSmallIntegerField(default=0)),
                ('release_count', models.PositiveSmallIntegerField(default=0)),
                ('event_seq', models.BigIntegerField(default=0)),
                ('event_head', models.CharField(default='', help_text='Hash of its newest event.', max_length=64)),
                ('progress', models.JSONField(null=True)),
                ('log_bytes', models.BigIntegerField(default=0)),
                ('cancel_requested_at', models.DateTimeField(null=True)),
                ('cancel_reason', models.CharField(choices=[('requested', 'Requested'), ('batch_canceled', 'Batch Canceled'), ('superseded', 'Superseded'), ('dependency_failed', 'Dependency Failed'), ('timeout', 'Timeout'), ('operator', 'Operator'), ('condition_false', 'Condition False'), ('stopped_by_worker', 'Stopped By Worker')], max_length=30, null=True)),
                ('cancel_actor', models.CharField(max_length=200, null=True)),
                ('cancel_message', models.TextField(null=True)),
                ('cancel_deadline_at', models.DateTimeField(null=True)),
                ('late_result_at', models.DateTimeField(help_text='When a lost job fails without a late result.', null=True)),
                ('last_billed_minute', models.IntegerField(help_text='Minutes of this attempt that were billed.', null=True)),
                ('ingest_run_id', models.CharField(max_length=64, null=True)),
                ('failure_reason', models.CharField(choices=[('image_pull_failed', 'Image Pull Failed'), ('checkout_failed', 'Checkout Failed'), ('command_failed', 'Command Failed'), ('command_not_found', 'Command Not Found'), ('sandbox_apply_failed', 'Sandbox Apply Failed'), ('sandbox_unavailable', 'Sandbox Unavailable'), ('timed_out', 'Timed Out'), ('out_of_memory', 'Out Of Memory'), ('disk_full', 'Disk Full'), ('worker_disk_full', 'Worker Disk Full'), ('too_many_processes', 'Too Many Processes'), ('trace_incomplete', 'Trace Incomplete'), ('upload_failed', 'Upload Failed'), ('upload_rejected', 'Upload Rejected'), ('result_missing', 'Result Missing'), ('result_unreadable', 'Result Unreadable'), ('never_acknowledged', 'Never Acknowledged'), ('lease_expired', 'Lease Expired'), ('worker_lost', 'Worker Lost'), ('worker_shutdown', 'Worker Shutdown'), ('worker_error', 'Worker Error')], max_length=30, null=True)),
                ('failure_class', models.CharField(choices=[('job', 'Job'), ('worker', 'Worker'), ('infrastructure', 'Infrastructure'), ('policy', 'Policy')], max_length=20, null=True)),
                ('failure_message', models.TextField(null=True)),
                ('exit_code', models.IntegerField(null=True)),
                ('root_job_ulid', models.CharField(max_length=30)),
                ('retry_of_job_ulid', models.CharField(max_length=30, null=True)),
                ('retry_kind', models.CharField(choices=[('automatic', 'Automatic'), ('manual', 'Manual')], max_length=20, null=True)),
                ('replay_of_job_ulid', models.CharField(help_text='The job that this one repeats.', max_length=30, null=True)),
                ('attempt', models.PositiveIntegerField(default=1)),
                ('has_artifacts', models.BooleanField(db_default=False, default=False, help_text='Its final event binds those that are complete.')),
                ('awaited', models.BooleanField(default=False, help_text='Other jobs depend on this one and are checked when it ends.')),
                ('automatic_retries_spent', models.PositiveSmallIntegerField(default=0, help_text='Since the last manual one.')),
                ('created_at', models.DateTimeField()),
                ('started_at', models.DateTimeField(null=True)),
                ('phase_at', models.DateTimeField(help_text='When it came into its present state.')),
                ('executing_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('updated_at', models.DateTimeField()),
                ('batch', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='runtime_jobs.batch')),
            ],
            options={
                'db_table': 'runtime_jobs',
                'permissions': [('operate_job', 'May cancel, retry and revoke')],
            },
        ),
        migrations.CreateModel(
            name='FailureExplanation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('category', models.CharField(choices=[('USER', 'User'), ('INFRA', 'Infra'), ('TOOLING', 'Tooling'), ('FLAKY', 'Flaky'), ('CANCELED', 'Canceled'), ('UNKNOWN', 'Unknown')], max_length=10)),
                ('confidence', models.CharField(choices=[('LOW', 'Low'), ('MEDIUM', 'Medium'), ('HIGH', 'High')], max_length=10)),
                ('summary', models.CharField(max_length=160)),
                ('details', models.CharField(blank=True, max_length=512)),
                ('created_at', models.DateTimeField()),
                ('job', models.OneToOneField(db_column='job_ulid', on_delete=django.db.models.deletion.CASCADE, related_name='explanation', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_failure_explanations',
            },
        ),
        migrations.CreateModel(
            name='Dependency',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('needs_success', models.BooleanField(db_default=True, default=True, help_text='Without it any end is enough.')),
                ('job', models.ForeignKey(db_column='job_ulid', db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.job', to_field='job_ulid')),
                ('on', models.ForeignKey(db_column='on_job_ulid', db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_job_dependencies',
            },
        ),
        migrations.CreateModel(
            name='Artifact',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('artifact_ulid', models.CharField(default=runtime_jobs.identifiers.new_artifact_id, editable=False, max_length=30, unique=True)),
                ('type', models.CharField(max_length=63)),
                ('uri', models.CharField(max_length=2048)),
                ('created_at', models.DateTimeField()),
                ('job', models.ForeignKey(db_column='job_ulid', db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='artifacts', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_job_artifacts',
            },
        ),
        migrations.CreateModel(
            name='JobEvent',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('event_ulid', models.CharField(default=runtime_jobs.identifiers.new_event_id, max_length=30)),
                ('seq', models.BigIntegerField()),
                ('event_type', models.CharField(max_length=40)),
                ('actor_kind', models.CharField(max_length=20)),
                ('actor_id', models.CharField(max_length=200)),
                ('payload_json', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField()),
                ('xid', runtime_jobs.db_functions.TransactionId(db_default=runtime_jobs.db_functions.FeedStamp())),
                ('org_slug', models.CharField(max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('correlation_id', models.CharField(max_length=64)),
                ('worker_id', models.CharField(max_length=30, null=True)),
                ('from_state', models.CharField(max_length=20, null=True)),
                ('to_state', models.CharField(max_length=20, null=True)),
                ('fence', models.BigIntegerField()),
                ('prev_hash', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='events', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_job_events',
            },
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
            },
        ),
        migrations.CreateModel(
            name='LogChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.PositiveIntegerField(default=0)),
                ('seq', models.PositiveIntegerField()),
                ('chunk', models.BinaryField()),
                ('sha256', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField()),
                ('job', models.ForeignKey(db_column='job_ulid', db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='log_chunks', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_job_log_chunks',
            },
        ),
        migrations.CreateModel(
            name='MaskSnapshot',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('fence', models.BigIntegerField(help_text='Of the claim.')),
                ('sealed', models.BinaryField()),
                ('created_at', models.DateTimeField()),
                ('job', models.OneToOneField(db_column='job_ulid', on_delete=django.db.models.deletion.CASCADE, related_name='mask_snapshot', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_mask_snapshots',
            },
        ),
        migrations.CreateModel(
            name='OperatorEvent',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('event_ulid', models.CharField(default=runtime_jobs.identifiers.new_event_id, max_length=30, unique=True)),
                ('action', models.CharField(max_length=60)),
                ('actor', models.CharField(max_length=200)),
                ('target', models.CharField(max_length=200)),
                ('before', models.JSONField(null=True)),
                ('after', models.JSONField(null=True)),
                ('reason', models.TextField(blank=True)),
                ('source_address', models.GenericIPAddressField(null=True, verbose_name='source IP')),
                ('created_at', models.DateTimeField()),
                ('org_slug', models.CharField(max_length=63, null=True)),
                ('job_type', models.CharField(max_length=50, null=True)),
                ('xid', runtime_jobs.db_functions.TransactionId(db_default=runtime_jobs.db_functions.FeedStamp(), editable=False)),
            ],
            options={
                'verbose_name': 'operator action',
                'db_table': 'operator_events',
                'indexes': [models.Index(fields=['-created_at'], name='operator_events_newest'), models.Index(fields=['xid', 'id'], name='operator_events_by_stamp')],
            },
        ),
        migrations.CreateModel(
            name='StorageUsage',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='runtime_jobs.organization')),
                ('byte_count', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'runtime_storage_usage',
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('operator', 'Operator'), ('quota_manager', 'quota manager')], db_default='viewer', default='viewer', help_text='viewer: reads jobs, events and limits. operator: also cancels jobs and controls webhooks and incidents. quota manager: also changes limits, pauses and throttles.', max_length=20)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='runtime_jobs.organization')),
            ],
            options={
                'verbose_name': 'member',
            },
        ),
        migrations.CreateModel(
            name='PackVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('pack_id', models.CharField(max_length=100, verbose_name='pack')),
                ('version', models.CharField(max_length=64)),
                ('plan', models.JSONField()),
                ('plan_hash', models.CharField(max_length=64)),
                ('created_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='pack_versions', to='runtime_jobs.organization')),
            ],
            options={
                'db_table': 'pack_versions',
            },
        ),
        migrations.CreateModel(
            name='PayloadSchema',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('job_type', models.CharField(max_length=50)),
                ('document', models.JSONField()),
                ('version', models.PositiveIntegerField(default=1)),
                ('changed_by', models.CharField(max_length=200)),
                ('changed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='payload_schemas', to='runtime_jobs.organization')),
            ],
            options={
                'db_table': 'payload_schemas',
            },
        ),
        migrations.CreateModel(
            name='PersonalKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('is_jwt', models.BooleanField(default=False, help_text='Creates a signed token, for clients that accept no other form. It always expires.', verbose_name='JSON Web Token')),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField(blank=True, help_text='In UTC. Empty: never.', null=True, verbose_name='expires')),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='personal_keys', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'personal key',
            },
        ),
        migrations.AddField(
            model_name='organization',
            name='plan',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='organizations', to='runtime_jobs.plan'),
        ),
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(db_default=django.contrib.postgres.functions.RandomUUID(), default=runtime_jobs.identifiers.new_uuid, editable=False)),
                ('public_slug', models.CharField(blank=True, db_default=django.db.models.functions.comparison.Cast(django.contrib.postgres.functions.RandomUUID(), models.CharField()), default='', editable=False, max_length=64)),
                ('visibility', models.CharField(choices=[('public', 'Public'), ('private', 'Private')], db_default='private', default='private', help_text='Who may read the project by the Bencher API. public: everyone, without authentication.', max_length=10)),
                ('slug', models.CharField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('enabled', models.BooleanField(default=False, help_text='Allows hosted runtime analysis for this project.')),
                ('repositories', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=512), blank=True, default=list, help_text='owner/name as on the Git host, or owner/* for all repositories of an owner.', size=None)),
                ('pool', models.CharField(blank=True, help_text="Pool that runs the project's jobs. Empty: the default pool.", max_length=63)),
                ('least_isolation', models.CharField(blank=True, choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], help_text='Weakest sandbox that is accepted. Empty: the minimum isolation of the pool.', max_length=20, verbose_name='minimum isolation')),
                ('trace', models.CharField(blank=True, choices=[('none', 'none'), ('network', 'network'), ('full', 'full')], help_text='What is recorded of jobs that do not say it. full: processes, network and files. network: no files. none: nothing. Empty: as the pool says.', max_length=10)),
                ('configured_command', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=4096), blank=True, default=list, help_text='Argument list for jobs of webhooks and for batches without own jobs. Empty: no job is created.', size=None, verbose_name='default command')),
                ('configured_directory', models.CharField(default='.', max_length=1024, verbose_name='working directory')),
                ('configured_timeout_seconds', models.PositiveIntegerField(default=300, validators=[django.core.validators.MinValueValidator(1)], verbose_name='timeout (seconds)')),
                ('configured_network', models.BooleanField(default=False, verbose_name='allow network')),
                ('push_enabled', models.BooleanField(default=False, help_text='Creates jobs for pushes as well as for pull requests.', verbose_name='run on push')),
                ('webhook_generation', models.PositiveIntegerField(default=0, editable=False, help_text='Generation of the webhook secret, which is derived. 0: no secret yet.')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='runtime_jobs.organization')),
            ],
        ),
        migrations.AddField(
            model_name='organization',
            name='default_project',
            field=models.ForeignKey(blank=True, db_index=False, help_text='Project of jobs that name none (API of document 004). Empty: the only enabled project.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='runtime_jobs.project'),
        ),
        migrations.CreateModel(
            name='CacheEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('object_key', models.CharField(max_length=1024, unique=True)),
                ('byte_count', models.BigIntegerField(verbose_name='size')),
                ('sha256', models.CharField(max_length=64, null=True)),
                ('created_at', models.DateTimeField()),
                ('upload_until', models.DateTimeField()),
                ('completed_at', models.DateTimeField(null=True)),
                ('is_abandoned', models.BooleanField(default=False)),
                ('scope', models.CharField(blank=True, max_length=255)),
                ('key', models.CharField(max_length=512)),
                ('version', models.CharField(max_length=64)),
                ('last_used_at', models.DateTimeField()),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runtime_jobs.organization')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'verbose_name_plural': 'cache entries',
                'db_table': 'runtime_cache_entries',
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('jobs:read', 'Jobs Read'), ('jobs:write', 'Jobs Write'), ('orch:read', 'Orch Read'), ('orch:operate', 'Orch Operate'), ('orch:quota', 'Orch Quota'), ('secrets:write', 'Secrets Write')], max_length=20), default=list, size=None)),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField(blank=True, help_text='In UTC. Empty: never.', null=True, verbose_name='expires')),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to='runtime_jobs.organization')),
                ('project', models.ForeignKey(blank=True, help_text='Creates a key for this project and the Bencher API (bencher_run_…). Empty: a token of the organization for the native API.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='runtime_jobs.project')),
            ],
            options={
                'verbose_name': 'API token',
            },
        ),
        migrations.CreateModel(
            name='Repository',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('owner', models.CharField(max_length=100)),
                ('name', models.CharField(max_length=100)),
                ('is_private', models.BooleanField(default=False, help_text='Git asks for credentials.', verbose_name='private')),
                ('next_run_index', models.PositiveBigIntegerField(default=1, editable=False)),
                ('origin', models.CharField(help_text='https://host/owner/name, or the path of a bare repository.', max_length=1024)),
                ('sealed_credential', models.BinaryField(null=True)),
                ('mirrored_at', models.DateTimeField(editable=False, null=True, verbose_name='mirrored')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='git_repositories', to='runtime_jobs.project')),
            ],
            options={
                'verbose_name_plural': 'repositories',
                'db_table': 'repositories',
            },
        ),
        migrations.CreateModel(
            name='RejectedWorkflow',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('workflow_file', models.CharField(max_length=256)),
                ('head_sha', models.CharField(max_length=64)),
                ('head_ref', models.CharField(blank=True, max_length=256)),
                ('event', models.CharField(choices=[('push', 'Push'), ('pull_request', 'Pull Request'), ('schedule', 'Schedule'), ('workflow_dispatch', 'Dispatch')], max_length=20)),
                ('trigger_id', models.CharField(max_length=200)),
                ('diagnostics', models.JSONField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('repository', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rejected_workflows', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'rejected_workflows',
            },
        ),
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Letters, digits and underscores. The case of letters does not matter.', max_length=100)),
                ('updated_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField()),
                ('updated_at', models.DateTimeField()),
                ('sealed', models.BinaryField()),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.organization')),
                ('repository', models.ForeignKey(blank=True, db_index=False, help_text='Empty: for all repositories of the organization.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'runtime_secrets',
            },
        ),
        migrations.CreateModel(
            name='StepAnnotation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.PositiveIntegerField()),
                ('number', models.PositiveIntegerField()),
                ('level', models.CharField(choices=[('notice', 'Notice'), ('warning', 'Warning'), ('error', 'Error')], max_length=10)),
                ('message', models.TextField(blank=True)),
                ('title', models.CharField(blank=True, max_length=255)),
                ('path', models.CharField(blank=True, max_length=1024)),
                ('start_line', models.PositiveIntegerField(null=True)),
                ('end_line', models.PositiveIntegerField(null=True)),
                ('start_column', models.PositiveIntegerField(null=True)),
                ('end_column', models.PositiveIntegerField(null=True)),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='annotations', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'step_annotations',
            },
        ),
        migrations.CreateModel(
            name='StepLog',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('step', models.PositiveIntegerField()),
                ('next_seq', models.BigIntegerField(db_default=0, default=0)),
                ('skipped', models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ('chunk_count', models.BigIntegerField(db_default=0, default=0)),
                ('stored_bytes', models.BigIntegerField(db_default=0, default=0)),
                ('held', models.BinaryField(null=True)),
                ('held_masked', models.IntegerField(db_default=0, default=0)),
                ('waiting_bytes', models.BigIntegerField(db_default=0, default=0)),
                ('waiting_count', models.IntegerField(db_default=0, default=0)),
                ('open_line', models.BinaryField(db_default=b'', default=b'')),
                ('annotation_count', models.IntegerField(db_default=0, default=0)),
                ('is_truncated', models.BooleanField(db_default=False, default=False)),
                ('omitted_forms', models.IntegerField(db_default=0, default=0)),
                ('closed_at', models.DateTimeField(null=True)),
                ('closed_bytes', models.BigIntegerField(null=True)),
                ('object_key', models.CharField(db_default='', default='', max_length=1024)),
                ('object_bytes', models.BigIntegerField(db_default=0, default=0)),
                ('attempts', models.IntegerField(db_default=0, default=0)),
                ('needs_finalizing', models.BooleanField(db_default=False, default=False)),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='step_logs', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'step_logs',
            },
        ),
        migrations.CreateModel(
            name='StoredArtifact',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('object_key', models.CharField(max_length=1024, unique=True)),
                ('byte_count', models.BigIntegerField(verbose_name='size')),
                ('sha256', models.CharField(max_length=64, null=True)),
                ('created_at', models.DateTimeField()),
                ('upload_until', models.DateTimeField()),
                ('completed_at', models.DateTimeField(null=True)),
                ('is_abandoned', models.BooleanField(default=False)),
                ('artifact_ulid', models.CharField(default=runtime_jobs.identifiers.new_artifact_id, editable=False, max_length=30, unique=True)),
                ('name', models.CharField(max_length=1024)),
                ('expires_at', models.DateTimeField(help_text='Null: never.', null=True, verbose_name='expires')),
                ('received_bytes', models.BigIntegerField(db_default=0, default=0)),
                ('batch', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='stored_artifacts', to='runtime_jobs.batch')),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='stored_artifacts', to='runtime_jobs.job', to_field='job_ulid')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runtime_jobs.organization')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'runtime_stored_artifacts',
            },
        ),
        migrations.CreateModel(
            name='UnsentRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('payload', models.JSONField()),
                ('created_at', models.DateTimeField()),
                ('job', models.OneToOneField(db_column='job_ulid', on_delete=django.db.models.deletion.CASCADE, related_name='unsent_run', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_unsent_runs',
            },
        ),
        migrations.CreateModel(
            name='UsageRecord',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('job_ulid', models.CharField(max_length=30)),
                ('org_slug', models.CharField(max_length=63)),
                ('project_slug', models.CharField(max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('minute', models.PositiveIntegerField()),
                ('minutes', models.PositiveIntegerField()),
                ('started_at', models.DateTimeField()),
                ('billed_until', models.DateTimeField()),
                ('recorded_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'usage_records',
                'indexes': [models.Index(fields=['org_slug', '-id'], name='usage_of_organization')],
                'constraints': [models.UniqueConstraint(fields=('job_ulid', 'minute'), name='one_usage_record_per_minute'), models.CheckConstraint(condition=models.Q(('minute__gte', models.F('minutes')), ('minutes__gte', 1)), name='usage_record_has_minutes')],
            },
        ),
        migrations.CreateModel(
            name='Variable',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Letters, digits and underscores. The case of letters does not matter.', max_length=100)),
                ('updated_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField()),
                ('updated_at', models.DateTimeField()),
                ('value', models.TextField(help_text='At most 48 KiB. It may not contain ${{.')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.organization')),
                ('repository', models.ForeignKey(blank=True, db_index=False, help_text='Empty: for all repositories of the organization.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'runtime_variables',
            },
        ),
        migrations.CreateModel(
            name='WaitingLogChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.BigIntegerField()),
                ('size', models.IntegerField()),
                ('sealed', models.BinaryField()),
                ('step_log', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='waiting', to='runtime_jobs.steplog')),
            ],
            options={
                'db_table': 'step_log_waiting_chunks',
            },
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
                ('event', models.CharField(choices=[('push', 'Push'), ('pull_request', 'Pull Request'), ('schedule', 'Schedule'), ('workflow_dispatch', 'Dispatch')], max_length=20)),
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
                ('conclusion', models.CharField(choices=[('success', 'Success'), ('failure', 'Failure'), ('neutral', 'Neutral'), ('cancelled', 'Cancelled'), ('skipped', 'Skipped'), ('timed_out', 'Timed Out'), ('action_required', 'Action Required')], max_length=20, null=True)),
                ('completed_at', models.DateTimeField(null=True)),
                ('pinned', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('batch', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='workflow_run', to='runtime_jobs.batch')),
                ('parent', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reruns', to='runtime_jobs.workflowrun')),
                ('repository', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'workflow_runs',
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
            },
        ),
        migrations.CreateModel(
            name='WorkflowTrigger',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('event', models.CharField(choices=[('push', 'Push'), ('pull_request', 'Pull Request'), ('schedule', 'Schedule'), ('workflow_dispatch', 'Dispatch')], max_length=20)),
                ('trigger_id', models.CharField(max_length=200)),
                ('head_sha', models.CharField(max_length=64)),
                ('facts', models.JSONField()),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('processed_at', models.DateTimeField(null=True)),
                ('repository', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='workflow_triggers', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'workflow_triggers',
            },
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.OrderBy(models.F('id'), descending=True), name='jobs_of_organization'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('project_slug'), models.OrderBy(models.F('id'), descending=True), name='jobs_of_project_by_key'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('git_commit__isnull', False)), fields=['org_slug', 'git_commit'], name='jobs_of_commit'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['status', 'created_at'], name='jobs_ended_by_status'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['org_slug', 'created_at'], name='jobs_ended_by_creation'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['created_at'], name='jobs_queued_by_age'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('pool'), models.OrderBy(models.F('priority'), descending=True), models.F('created_at'), models.F('id'), condition=models.Q(('state', 'queued')), name='jobs_in_claim_order'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['lane_id', 'id'], name='jobs_of_lane'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'blocked')), fields=['org_slug', 'id'], name='jobs_blocked'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state__in', ('leased', 'starting', 'checking_out', 'executing', 'uploading'))), fields=['state'], name='jobs_held'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state__in', ('lost', 'processing'))), fields=['state', 'late_result_at'], name='jobs_settling'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(models.Q(('concurrency_key', ''), _negated=True), models.Q(('state__in', ('succeeded', 'failed', 'canceled')), _negated=True)), fields=['org_slug', 'concurrency_key'], name='jobs_of_concurrency_key'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('job_type'), models.OrderBy(models.F('finished_at'), descending=True), condition=models.Q(('state__in', ['failed', 'succeeded', 'canceled'])), include=('started_at',), name='jobs_ended'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'failed')), fields=['finished_at'], include=('failure_reason',), name='jobs_failed_lately'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('cancel_requested_at__isnull', False)), fields=['id'], name='jobs_cancel_requested'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('attempt__gt', 1)), fields=['id'], name='jobs_retries'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('fence__gt', 1)), fields=['id'], name='jobs_redelivered'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('batch__isnull', False)), fields=['batch', 'id'], name='jobs_of_batch'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(django.db.models.fields.json.KeyTextTransform('spec', 'spec'), condition=models.Q(('job_type', 'oci')), name='jobs_of_hardware_spec'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['root_job_ulid'], name='jobs_of_root'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('job_type'), models.OrderBy(models.F('id'), descending=True), name='jobs_of_type_by_key'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('job_type'), models.OrderBy(django.db.models.expressions.CombinedExpression(models.F('id'), '+', models.Value(0)), descending=True), condition=models.Q(('state', 'queued')), name='jobs_queued_of_type'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('job_type'), models.F('status'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('finished_at__isnull', False)), name='jobs_ended_of_type'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('status'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('finished_at__isnull', False)), name='jobs_ended_of_organization'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['org_slug', 'correlation_id'], name='jobs_ended_of_correlation'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['org_slug', 'correlation_id'], name='jobs_queued_of_correlation'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('replay_of_job_ulid__isnull', False)), fields=['replay_of_job_ulid'], name='jobs_replayed'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.UniqueConstraint(condition=models.Q(('retry_of_job_ulid__isnull', False)), fields=('retry_of_job_ulid',), name='one_retry_per_job'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.UniqueConstraint(condition=models.Q(('ingest_run_id__isnull', False)), fields=('ingest_run_id',), name='one_job_per_ingest_run_id'),
        ),
        migrations.AddIndex(
            model_name='dependency',
            index=models.Index(fields=['on', 'job'], name='dependents_of_job'),
        ),
        migrations.AddConstraint(
            model_name='dependency',
            constraint=models.UniqueConstraint(fields=('job', 'on'), name='one_dependency'),
        ),
        migrations.AddConstraint(
            model_name='artifact',
            constraint=models.UniqueConstraint(fields=('job', 'uri'), name='one_artifact_per_uri'),
        ),
        migrations.AddIndex(
            model_name='jobevent',
            index=models.Index(fields=['xid', 'id'], name='events_by_transaction'),
        ),
        migrations.AddConstraint(
            model_name='jobevent',
            constraint=models.UniqueConstraint(fields=('job', 'seq'), name='one_event_per_seq'),
        ),
        migrations.AddConstraint(
            model_name='jobevent',
            constraint=models.UniqueConstraint(condition=models.Q(('to_state__in', ('succeeded', 'failed', 'canceled'))), fields=('job',), name='one_final_event_per_job'),
        ),
        migrations.AddConstraint(
            model_name='jobstep',
            constraint=models.UniqueConstraint(fields=('job', 'index'), name='one_step_per_index'),
        ),
        migrations.AddConstraint(
            model_name='jobstep',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('run', ''), _negated=True), ('uses', '')), models.Q(('run', ''), models.Q(('uses', ''), _negated=True)), _connector='OR'), name='job_step_runs_or_uses'),
        ),
        migrations.AddConstraint(
            model_name='jobstep',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('completed_at__isnull', True), ('conclusion__isnull', True), ('status__in', ('queued', 'running'))), models.Q(('completed_at__isnull', False), ('conclusion__isnull', False), ('status__in', ('completed', 'cancelled', 'skipped'))), _connector='OR'), name='job_step_end'),
        ),
        migrations.AddConstraint(
            model_name='jobstep',
            constraint=models.CheckConstraint(condition=models.Q(('log_byte_count__gte', 0)), name='job_step_log_byte_count'),
        ),
        migrations.AddConstraint(
            model_name='logchunk',
            constraint=models.UniqueConstraint(fields=('job', 'step', 'seq'), name='one_chunk_per_seq'),
        ),
        migrations.AddConstraint(
            model_name='membership',
            constraint=models.UniqueConstraint(fields=('user', 'organization'), name='one_membership_per_person'),
        ),
        migrations.AddConstraint(
            model_name='packversion',
            constraint=models.UniqueConstraint(fields=('organization', 'pack_id', 'version'), name='one_pack_per_version'),
        ),
        migrations.AddConstraint(
            model_name='payloadschema',
            constraint=models.UniqueConstraint(fields=('organization', 'job_type'), name='one_payload_schema_per_type'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.UniqueConstraint(fields=('organization', 'slug'), name='one_project_per_slug'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.UniqueConstraint(fields=('uuid',), name='one_project_per_uuid'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.UniqueConstraint(fields=('public_slug',), name='one_project_per_public_slug'),
        ),
        migrations.AddConstraint(
            model_name='organization',
            constraint=models.UniqueConstraint(fields=('uuid',), name='one_organization_per_uuid'),
        ),
        migrations.AddIndex(
            model_name='cacheentry',
            index=models.Index(condition=models.Q(('completed_at', None)), fields=['upload_until'], name='cache_entries_by_upload'),
        ),
        migrations.AddIndex(
            model_name='cacheentry',
            index=models.Index(fields=['last_used_at'], name='cache_entries_by_use'),
        ),
        migrations.AddConstraint(
            model_name='cacheentry',
            constraint=models.UniqueConstraint(condition=models.Q(('is_abandoned', False)), fields=('project', 'scope', 'version', 'key'), name='one_cache_entry_per_key'),
        ),
        migrations.AddConstraint(
            model_name='cacheentry',
            constraint=models.CheckConstraint(condition=models.Q(('byte_count__gte', 0)), name='cache_size_is_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='repository',
            constraint=models.UniqueConstraint(django.db.models.functions.text.Lower('owner'), django.db.models.functions.text.Lower('name'), name='one_repository_per_name'),
        ),
        migrations.AddConstraint(
            model_name='repository',
            constraint=models.CheckConstraint(condition=models.Q(('next_run_index__gte', 1)), name='repository_run_index_from_1'),
        ),
        migrations.AddIndex(
            model_name='rejectedworkflow',
            index=models.Index(fields=['created_at'], name='rejected_workflows_by_age'),
        ),
        migrations.AddConstraint(
            model_name='rejectedworkflow',
            constraint=models.UniqueConstraint(fields=('repository', 'workflow_file', 'trigger_id'), name='one_rejection_per_trigger'),
        ),
        migrations.AddConstraint(
            model_name='secret',
            constraint=models.UniqueConstraint(models.F('organization'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository', None)), name='one_secret_per_organization_name'),
        ),
        migrations.AddConstraint(
            model_name='secret',
            constraint=models.UniqueConstraint(models.F('repository'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository__isnull', False)), name='one_secret_per_repository_name'),
        ),
        migrations.AddConstraint(
            model_name='stepannotation',
            constraint=models.UniqueConstraint(fields=('job', 'step', 'number'), name='one_annotation_per_number'),
        ),
        migrations.AddIndex(
            model_name='steplog',
            index=models.Index(condition=models.Q(('needs_finalizing', True)), fields=['id'], name='step_logs_to_finalize'),
        ),
        migrations.AddConstraint(
            model_name='steplog',
            constraint=models.UniqueConstraint(fields=('job', 'step'), name='one_log_per_step'),
        ),
        migrations.AddConstraint(
            model_name='steplog',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('object_bytes', 0), ('object_key', '')), models.Q(models.Q(('object_key', ''), _negated=True), ('attempts__gte', 1)), _connector='OR'), name='step_log_object'),
        ),
        migrations.AddConstraint(
            model_name='steplog',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('held__isnull', False), ('held_masked__gte', 0)), ('held_masked', 0), _connector='OR'), name='step_log_held'),
        ),
        migrations.AddIndex(
            model_name='storedartifact',
            index=models.Index(condition=models.Q(('completed_at', None)), fields=['upload_until'], name='artifacts_by_upload'),
        ),
        migrations.AddIndex(
            model_name='storedartifact',
            index=models.Index(fields=['expires_at'], name='artifacts_by_expiry'),
        ),
        migrations.AddIndex(
            model_name='storedartifact',
            index=models.Index(models.F('organization'), models.OrderBy(models.F('id'), descending=True), name='artifacts_of_organization'),
        ),
        migrations.AddConstraint(
            model_name='storedartifact',
            constraint=models.UniqueConstraint(condition=models.Q(('batch__isnull', False), ('is_abandoned', False)), fields=('batch', 'name'), name='one_artifact_per_batch_name'),
        ),
        migrations.AddConstraint(
            model_name='storedartifact',
            constraint=models.UniqueConstraint(condition=models.Q(('batch__isnull', True), ('is_abandoned', False)), fields=('job', 'name'), name='one_artifact_per_job_name'),
        ),
        migrations.AddConstraint(
            model_name='storedartifact',
            constraint=models.CheckConstraint(condition=models.Q(('byte_count__gte', 0)), name='artifact_size_is_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='variable',
            constraint=models.UniqueConstraint(models.F('organization'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository', None)), name='one_variable_per_organization_name'),
        ),
        migrations.AddConstraint(
            model_name='variable',
            constraint=models.UniqueConstraint(models.F('repository'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository__isnull', False)), name='one_variable_per_repository_name'),
        ),
        migrations.AddConstraint(
            model_name='waitinglogchunk',
            constraint=models.UniqueConstraint(fields=('step_log', 'seq'), name='one_waiting_chunk_per_seq'),
        ),
        migrations.AddIndex(
            model_name='workflowrun',
            index=models.Index(condition=models.Q(('conclusion__isnull', True)), fields=['repository', 'concurrency_group'], name='workflow_runs_open'),
        ),
        migrations.AddIndex(
            model_name='workflowrun',
            index=models.Index(fields=['repository', 'head_sha'], name='workflow_runs_of_commit'),
        ),
        migrations.AddIndex(
            model_name='workflowrun',
            index=models.Index(condition=models.Q(('completed_at__isnull', False), ('pinned', False)), fields=['completed_at'], name='workflow_runs_ended'),
        ),
        migrations.AddConstraint(
            model_name='workflowrun',
            constraint=models.UniqueConstraint(fields=('repository', 'run_index'), name='one_run_per_index'),
        ),
        migrations.AddConstraint(
            model_name='workflowrun',
            constraint=models.UniqueConstraint(condition=models.Q(('trigger_id', ''), _negated=True), fields=('repository', 'workflow_file', 'trigger_id'), name='one_run_per_trigger'),
        ),
        migrations.AddConstraint(
            model_name='workflowrun',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('completed_at__isnull', True), ('conclusion__isnull', True)), models.Q(('completed_at__isnull', False), ('conclusion__isnull', False)), _connector='OR'), name='workflow_run_end'),
        ),
        migrations.AddIndex(
            model_name='workflowschedule',
            index=models.Index(fields=['next_at'], name='workflow_schedules_by_time'),
        ),
        migrations.AddConstraint(
            model_name='workflowschedule',
            constraint=models.UniqueConstraint(fields=('repository', 'workflow_file', 'cron'), name='one_workflow_schedule'),
        ),
        migrations.AddIndex(
            model_name='workflowtrigger',
            index=models.Index(fields=['received_at'], name='workflow_triggers_by_age'),
        ),
        migrations.AddConstraint(
            model_name='workflowtrigger',
            constraint=models.UniqueConstraint(fields=('repository', 'trigger_id'), name='one_workflow_trigger'),
        ),
    ]
