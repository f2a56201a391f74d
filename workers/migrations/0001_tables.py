"""The tables of workers and pools, and the pool of the runners of the Bencher protocol."""

from typing import Any

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.identifiers
import workers.registry.models
from django.db import migrations, models


def create_pool(apps: Any, _schema_editor: Any) -> None:
    """Create the pool of runners. Its order is strict: the oldest job first within a priority, no aging."""
    description = "Runners of the Bencher protocol."
    pools = apps.get_model("workers", "Pool").objects
    pools.create(slug="bare-metal", description=description, least_isolation="none", policy="fifo", aging=False)


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Worker',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('worker_id', models.CharField(default=runtime_jobs.identifiers.new_worker_id, editable=False, max_length=30, unique=True)),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('name', models.CharField(blank=True, db_default='', default='', help_text='Name of a runner. Empty: the slug.', max_length=64)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('certificate_subject', models.CharField(blank=True, help_text="Subject that a trusted proxy sends after it has verified the worker's client certificate.", max_length=512, null=True, unique=True)),
                ('capacity', models.PositiveIntegerField(default=1, help_text='Slots: the number of jobs that run at the same time.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(256)])),
                ('labels', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), blank=True, default=list, size=None)),
                ('capabilities', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), blank=True, default=workers.registry.models.registered_capabilities, help_text='Capabilities that the worker may offer. A job runs only where all its requirements are offered.', size=None)),
                ('state', models.CharField(choices=[('active', 'Active'), ('draining', 'Draining'), ('maintenance', 'Maintenance'), ('archived', 'Archived'), ('revoked', 'Revoked')], default='active', editable=False, max_length=20)),
                ('note', models.CharField(blank=True, editable=False, max_length=200)),
                ('session', models.CharField(blank=True, editable=False, help_text="ULID of the worker's newest process.", max_length=26)),
                ('last_seen_at', models.DateTimeField(editable=False, null=True)),
                ('agent_version', models.CharField(blank=True, db_default='', default='', editable=False, help_text='As the runner reported it.', max_length=64)),
                ('offered', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), editable=False, null=True, size=None)),
                ('offered_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), editable=False, null=True, size=None)),
                ('offered_isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], editable=False, max_length=20, null=True)),
                ('leases_from', models.BigIntegerField(db_default=0, default=0, editable=False, help_text='No lease with a lower id counts. Claims raise it.')),
                ('unready_reason', models.CharField(blank=True, db_default='', default='', editable=False, help_text='Why the worker does not claim jobs, as it reported. Its next claim clears it.', max_length=500)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('archived_at', models.DateTimeField(editable=False, null=True)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('capacity__gte', 1)), name='worker_capacity_positive'), models.CheckConstraint(condition=models.Q(models.Q(('archived_at__isnull', True), models.Q(('state', 'archived'), _negated=True)), models.Q(('archived_at__isnull', False), ('state__in', ['archived', 'revoked'])), _connector='OR'), name='worker_archived_state')],
            },
        ),
        migrations.CreateModel(
            name='Pool',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('description', models.CharField(blank=True, max_length=200)),
                ('least_isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], default='namespaces', help_text="Weakest sandbox that the pool's jobs accept, unless their project sets another.", max_length=20, verbose_name='minimum isolation')),
                ('trace', models.CharField(blank=True, choices=[('none', 'none'), ('network', 'network'), ('full', 'full')], help_text='What is recorded of jobs that do not say it, and whose project does not. full: processes, network and files. network: no files. none: nothing. Empty: as the job type says (full for runtime, else none).', max_length=10)),
                ('policy', models.CharField(choices=[('fifo', 'Fifo'), ('fair', 'Fair')], default='fair', editable=False, help_text='Order among jobs of equal priority. fair: organizations share by weight, so a backlog of one delays no other. fifo: the oldest job first.', max_length=10)),
                ('aging', models.BooleanField(db_default=True, default=True, help_text='Waiting raises the priority of a job (setting AGING_SECONDS). Off: strict order by priority; a job of low priority may starve.')),
                ('trusts_lease_ids', models.BooleanField(default=False, help_text='Accepts the id of a lease instead of a token. The runner of Delta CI sends no credentials: every client that knows a lease id of this pool may report on its job.', verbose_name='allow unauthenticated runners')),
            ],
        ),
        migrations.CreateModel(
            name='RunnerChannels',
            fields=[
                ('process', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('channels', models.JSONField(default=dict)),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'runner_channels',
            },
        ),
        migrations.CreateModel(
            name='ActionsRunner',
            fields=[
                ('worker', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='actions_runner', serialize=False, to='workers.worker')),
                ('name', models.CharField(max_length=100, unique=True)),
                ('labels', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=100), blank=True, default=list, size=None)),
                ('isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], default='namespaces', max_length=20)),
                ('host_name', models.CharField(blank=True, default='', editable=False, max_length=255)),
                ('version', models.CharField(blank=True, default='', editable=False, max_length=255)),
            ],
            options={
                'verbose_name': 'workflow runner',
                'db_table': 'actions_runners',
            },
        ),
        migrations.CreateModel(
            name='Runner',
            fields=[
            ],
            options={
                'verbose_name': 'runner',
                'proxy': True,
                'default_permissions': ('view',),
                'indexes': [],
                'constraints': [],
            },
            bases=('workers.worker',),
        ),
        migrations.CreateModel(
            name='HardwareSpec',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('name', models.CharField(max_length=64)),
                ('slug', models.CharField(max_length=64, unique=True)),
                ('os', models.CharField(choices=[('linux', 'Linux'), ('macos', 'macOS'), ('windows', 'Windows')], max_length=10, verbose_name='operating system')),
                ('architecture', models.CharField(choices=[('x86_64', 'x86_64'), ('aarch64', 'aarch64')], max_length=10)),
                ('sandbox', models.CharField(blank=True, choices=[('firecracker', 'Firecracker')], help_text='Sandbox of the jobs. firecracker: they need the isolation microvm. Empty: they need none.', max_length=20, null=True)),
                ('cpu', models.PositiveIntegerField(validators=[django.core.validators.MinValueValidator(1)], verbose_name='CPUs')),
                ('memory', models.PositiveBigIntegerField(validators=[django.core.validators.MinValueValidator(1)], verbose_name='memory (bytes)')),
                ('disk', models.PositiveBigIntegerField(validators=[django.core.validators.MinValueValidator(1)], verbose_name='disk (bytes)')),
                ('network', models.BooleanField(default=False, help_text='Whether jobs have network access. The runner enforces it.')),
                ('fallback_at', models.DateTimeField(editable=False, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('archived_at', models.DateTimeField(editable=False, null=True)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('cpu__gte', 1), ('disk__gte', 1), ('memory__gte', 1)), name='hardwarespec_amounts_positive'), models.UniqueConstraint(models.ExpressionWrapper(models.Q(('fallback_at__isnull', False)), output_field=models.BooleanField()), condition=models.Q(('fallback_at__isnull', False)), name='hardwarespec_one_fallback')],
            },
        ),
        migrations.AddField(
            model_name='worker',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='workers', to='workers.pool'),
        ),
        migrations.CreateModel(
            name='WorkerSpec',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('spec', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='worker_specs', to='workers.hardwarespec')),
                ('worker', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='worker_specs', to='workers.worker')),
            ],
            options={
                'verbose_name': 'association',
                'constraints': [models.UniqueConstraint(fields=('worker', 'spec'), name='workerspec_once')],
            },
        ),
        migrations.AddField(
            model_name='worker',
            name='specs',
            field=models.ManyToManyField(related_name='workers', through='workers.WorkerSpec', to='workers.hardwarespec'),
        ),
        migrations.CreateModel(
            name='RegistrationToken',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('digest', models.BinaryField(max_length=32, unique=True)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(null=True)),
                ('revoked_at', models.DateTimeField(null=True)),
                ('runner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to='workers.actionsrunner')),
            ],
            options={
                'db_table': 'actions_registration_tokens',
            },
        ),
        migrations.RunPython(create_pool),
    ]
