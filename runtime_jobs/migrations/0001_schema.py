"""The schema of 0.1.0. A database that ran commit 8637103 has all of it: `replaces` lists the migrations it applied."""

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.db_functions
import runtime_jobs.identifiers
from django.conf import settings
from django.db import migrations, models

# No code may change an event or move a job out of its final state, whatever its bugs.
APPEND_ONLY = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention and the rebase of xid after a restore use one way, which names itself.
    IF current_setting('orchestrator.maintenance', true) = lower(TG_OP) THEN
        RETURN CASE WHEN TG_OP = 'UPDATE' THEN NEW WHEN TG_OP = 'DELETE' THEN OLD END;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runtime_job_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON runtime_job_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON operator_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON operator_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""

FINAL_STAYS = """
CREATE FUNCTION refuse_way_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % is % and stays so', OLD.job_ulid, OLD.state USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER final_stays BEFORE UPDATE ON runtime_jobs FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL
          AND (NEW.state, NEW.finished_at, NEW.ingest_run_id, NEW.failure_reason)
              IS DISTINCT FROM (OLD.state, OLD.finished_at, OLD.ingest_run_id, OLD.failure_reason))
    EXECUTE FUNCTION refuse_way_out();
"""

# Rows that are written often leave room on their page, so that an update needs no new index entry.
ROOM = "ALTER TABLE runtime_jobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01)"

UNDO = """
DROP TRIGGER final_stays ON runtime_jobs;
DROP FUNCTION refuse_way_out;
DROP TRIGGER append_only ON runtime_job_events;
DROP TRIGGER append_only_whole ON runtime_job_events;
DROP TRIGGER append_only ON operator_events;
DROP TRIGGER append_only_whole ON operator_events;
DROP FUNCTION refuse_change;
"""


class Migration(migrations.Migration):

    initial = True

    replaces = [
        ('runtime_jobs', '0001_initial'),
        ('runtime_jobs', '0002_guards'),
        ('runtime_jobs', '0003_batches_artifacts_explanations'),
        ('runtime_jobs', '0004_projects_configured_command'),
        ('runtime_jobs', '0005_lane_of_job'),
        ('runtime_jobs', '0006_dependencies'),
        ('runtime_jobs', '0007_scheduling'),
        ('runtime_jobs', '0008_followed_priority'),
        ('runtime_jobs', '0009_results_of_many_calls'),
        ('runtime_jobs', '0010_plans_below_emergencies'),
    ]

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
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
            name='Organization',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('name', models.CharField(blank=True, max_length=200)),
                ('hosted_runtime_analysis', models.BooleanField(default=False)),
                ('egress', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), blank=True, default=list, help_text='Where its jobs with network may go: host, *.suffix or host:port (443 unless named).', size=None)),
                ('followed_priority', models.IntegerField(editable=False, help_text="Its plan's, when its waiting jobs were last brought up to that.", null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
        ),
        migrations.CreateModel(
            name='Plan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('priority', models.IntegerField(default=150, help_text='Of its jobs; higher goes first (free 100, team 200 …).', validators=[django.core.validators.MaxValueValidator(399)])),
                ('max_timeout_seconds', models.PositiveIntegerField(default=900, validators=[django.core.validators.MinValueValidator(1)])),
                ('max_active', models.PositiveIntegerField(blank=True, help_text='Jobs of an organization at once. Those of priority 200 and more count, but are not held.', null=True)),
                ('one_per_address', models.BooleanField(default=False, help_text='For organizations without an owner: one job at a time from a source address.')),
                ('weight', models.PositiveIntegerField(default=1, help_text='Its share in pools that share between organizations.', validators=[django.core.validators.MinValueValidator(1)])),
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
                ('cancel_reason', models.CharField(choices=[('requested', 'Requested'), ('batch_canceled', 'Batch Canceled'), ('superseded', 'Superseded'), ('dependency_failed', 'Dependency Failed'), ('timeout', 'Timeout'), ('operator', 'Operator')], max_length=30, null=True)),
                ('created_at', models.DateTimeField()),
            ],
            options={
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
                'indexes': [models.Index(fields=['created_at'], name='idempotency_keys_by_age')],
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
                ('least_isolation', models.CharField(max_length=20)),
                ('state', models.CharField(choices=[('blocked', 'Blocked'), ('queued', 'Queued'), ('leased', 'Leased'), ('starting', 'Starting'), ('checking_out', 'Checking Out'), ('executing', 'Executing'), ('uploading', 'Uploading'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('canceled', 'Canceled')], default='queued', editable=False, max_length=20)),
                ('status', models.GeneratedField(db_persist=True, expression=models.Case(models.When(needs_ingest=False, state='succeeded', then=models.Value('succeeded')), models.When(state='blocked', then=models.Value('queued')), models.When(state='queued', then=models.Value('queued')), models.When(state='leased', then=models.Value('queued')), models.When(state='starting', then=models.Value('running')), models.When(state='checking_out', then=models.Value('running')), models.When(state='executing', then=models.Value('running')), models.When(state='uploading', then=models.Value('running')), models.When(state='succeeded', then=models.Value('uploaded')), models.When(state='failed', then=models.Value('failed')), models.When(state='canceled', then=models.Value('canceled'))), output_field=models.CharField(max_length=20))),
                ('fence', models.BigIntegerField(default=0, help_text='Rises with every lease.')),
                ('requeue_count', models.PositiveSmallIntegerField(default=0)),
                ('release_count', models.PositiveSmallIntegerField(default=0)),
                ('event_seq', models.BigIntegerField(default=0)),
                ('event_head', models.CharField(default='', help_text='Hash of its newest event.', max_length=64)),
                ('progress', models.JSONField(null=True)),
                ('log_bytes', models.BigIntegerField(default=0)),
                ('cancel_requested_at', models.DateTimeField(null=True)),
                ('cancel_reason', models.CharField(choices=[('requested', 'Requested'), ('batch_canceled', 'Batch Canceled'), ('superseded', 'Superseded'), ('dependency_failed', 'Dependency Failed'), ('timeout', 'Timeout'), ('operator', 'Operator')], max_length=30, null=True)),
                ('cancel_actor', models.CharField(max_length=200, null=True)),
                ('cancel_message', models.TextField(null=True)),
                ('cancel_deadline_at', models.DateTimeField(null=True)),
                ('ingest_run_id', models.CharField(max_length=64, null=True, unique=True)),
                ('failure_reason', models.CharField(choices=[('checkout_failed', 'Checkout Failed'), ('command_failed', 'Command Failed'), ('command_not_found', 'Command Not Found'), ('sandbox_apply_failed', 'Sandbox Apply Failed'), ('sandbox_unavailable', 'Sandbox Unavailable'), ('timed_out', 'Timed Out'), ('out_of_memory', 'Out Of Memory'), ('disk_full', 'Disk Full'), ('too_many_processes', 'Too Many Processes'), ('trace_incomplete', 'Trace Incomplete'), ('upload_failed', 'Upload Failed'), ('upload_rejected', 'Upload Rejected'), ('never_acknowledged', 'Never Acknowledged'), ('lease_expired', 'Lease Expired'), ('worker_lost', 'Worker Lost'), ('worker_shutdown', 'Worker Shutdown'), ('worker_error', 'Worker Error')], max_length=30, null=True)),
                ('failure_class', models.CharField(choices=[('job', 'Job'), ('worker', 'Worker'), ('infrastructure', 'Infrastructure'), ('policy', 'Policy')], max_length=20, null=True)),
                ('failure_message', models.TextField(null=True)),
                ('exit_code', models.IntegerField(null=True)),
                ('root_job_ulid', models.CharField(max_length=30)),
                ('retry_of_job_ulid', models.CharField(max_length=30, null=True)),
                ('retry_kind', models.CharField(choices=[('automatic', 'Automatic'), ('manual', 'Manual')], max_length=20, null=True)),
                ('attempt', models.PositiveIntegerField(default=1)),
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
                ('event_ulid', models.CharField(default=runtime_jobs.identifiers.new_event_id, max_length=30, unique=True)),
                ('seq', models.BigIntegerField()),
                ('event_type', models.CharField(max_length=40)),
                ('actor_kind', models.CharField(max_length=20)),
                ('actor_id', models.CharField(max_length=200)),
                ('payload_json', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField()),
                ('xid', runtime_jobs.db_functions.TransactionId(db_default=runtime_jobs.db_functions.CurrentTransaction())),
                ('org_slug', models.CharField(max_length=63)),
                ('job_type', models.CharField(max_length=50)),
                ('correlation_id', models.CharField(max_length=64)),
                ('worker_id', models.CharField(max_length=30, null=True)),
                ('from_state', models.CharField(max_length=20, null=True)),
                ('to_state', models.CharField(max_length=20, null=True)),
                ('fence', models.BigIntegerField()),
                ('prev_hash', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
                ('job', models.ForeignKey(db_column='job_ulid', db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='events', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_job_events',
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
                ('source_address', models.GenericIPAddressField(null=True)),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'operator_events',
                'indexes': [models.Index(fields=['-created_at'], name='operator_events_newest')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='runtime_jobs.organization')),
            ],
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('jobs:read', 'Jobs Read'), ('jobs:write', 'Jobs Write'), ('orch:read', 'Orch Read'), ('orch:operate', 'Orch Operate'), ('orch:quota', 'Orch Quota')], max_length=20), default=list, size=None)),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to='runtime_jobs.organization')),
            ],
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
                ('slug', models.CharField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('enabled', models.BooleanField(default=False, help_text='For hosted runtime analysis.')),
                ('repositories', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=512), blank=True, default=list, help_text="owner/name as on the host; owner/* for all of an owner's.", size=None)),
                ('pool', models.CharField(blank=True, help_text='Empty: the default pool.', max_length=63)),
                ('least_isolation', models.CharField(blank=True, choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces')], help_text='Empty: what its pool asks for.', max_length=20)),
                ('configured_command', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=4096), blank=True, default=list, help_text='What a webhook or a run without jobs of its own runs, as an argument list. Empty: nothing.', size=None)),
                ('configured_directory', models.CharField(default='.', max_length=1024)),
                ('configured_timeout_seconds', models.PositiveIntegerField(default=300, validators=[django.core.validators.MinValueValidator(1)])),
                ('configured_network', models.BooleanField(default=False)),
                ('push_enabled', models.BooleanField(default=False, help_text='Pushes make jobs too, not only pull requests.')),
                ('webhook_generation', models.PositiveIntegerField(default=0, editable=False, help_text="Of its webhook's secret, which is derived, never stored; 0: none yet.")),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='runtime_jobs.organization')),
            ],
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
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('project_slug'), models.OrderBy(models.F('created_at'), descending=True), name='jobs_of_project'),
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
            index=models.Index(fields=['org_slug', 'git_commit'], name='jobs_of_commit'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['status', 'created_at'], name='jobs_by_status'),
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
            index=models.Index(condition=models.Q(('state', 'blocked')), fields=['id'], name='jobs_blocked'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state__in', ('leased', 'starting', 'checking_out', 'executing', 'uploading'))), fields=['state'], name='jobs_held'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(models.Q(('concurrency_key', ''), _negated=True), models.Q(('state__in', ('succeeded', 'failed', 'canceled')), _negated=True)), fields=['org_slug', 'concurrency_key'], name='jobs_of_concurrency_key'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state__in', ('leased', 'starting', 'checking_out', 'executing', 'uploading'))), fields=['source_address'], name='jobs_held_of_address'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('org_slug'), models.F('job_type'), models.OrderBy(models.F('finished_at'), descending=True), condition=models.Q(('state__in', ['failed', 'succeeded'])), name='jobs_ended'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'failed')), fields=['finished_at'], name='jobs_failed_lately'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('batch__isnull', False)), fields=['batch', 'id'], name='jobs_of_batch'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['root_job_ulid'], name='jobs_of_root'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state__in', ('succeeded', 'failed', 'canceled')), ('finished_at__isnull', False)), models.Q(models.Q(('state__in', ('succeeded', 'failed', 'canceled')), _negated=True), ('finished_at__isnull', True)), _connector='OR'), name='job_final_has_finished_at'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['blocked', 'queued', 'leased', 'starting', 'checking_out', 'executing', 'uploading', 'succeeded', 'failed', 'canceled'])), name='job_state_known'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'succeeded'), _negated=True), ('needs_ingest', False), ('ingest_run_id__isnull', False), _connector='OR'), name='job_uploaded_has_run'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('ingest_run_id__isnull', True), ('state', 'succeeded'), _connector='OR'), name='job_run_only_when_uploaded'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'failed'), ('failure_class__isnull', False), ('failure_reason__isnull', False)), models.Q(models.Q(('state', 'failed'), _negated=True), ('failure_class__isnull', True), ('failure_reason__isnull', True)), _connector='OR'), name='job_failed_has_reason'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'canceled'), _negated=True), ('cancel_requested_at__isnull', False), _connector='OR'), name='job_canceled_was_requested'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('requeue_count__lte', models.F('max_requeues'))), name='job_requeues_bounded'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('automatic_retries_spent__lte', models.F('automatic_retries'))), name='job_retries_bounded'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.UniqueConstraint(fields=('retry_of_job_ulid',), name='one_retry_per_job'),
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
            model_name='logchunk',
            constraint=models.UniqueConstraint(fields=('job', 'step', 'seq'), name='one_chunk_per_seq'),
        ),
        migrations.AddConstraint(
            model_name='membership',
            constraint=models.UniqueConstraint(fields=('user', 'organization'), name='one_membership_per_person'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.UniqueConstraint(fields=('organization', 'slug'), name='one_project_per_slug'),
        ),
        migrations.RunSQL(APPEND_ONLY + FINAL_STAYS, UNDO),
        migrations.RunSQL(ROOM, "ALTER TABLE runtime_jobs RESET (fillfactor, autovacuum_vacuum_scale_factor)"),
    ]
