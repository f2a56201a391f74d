"""Runners of the Bencher protocol: names and archives of workers, hardware specs."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.identifiers
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('workers', '0004_pool_aging'),
    ]

    operations = [
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
        migrations.AddField(
            model_name='worker',
            name='archived_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name='worker',
            name='modified_at',
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
        ),
        migrations.AddField(
            model_name='worker',
            name='name',
            field=models.CharField(blank=True, db_default='', default='', help_text='Name of a runner. Empty: the slug.', max_length=64),
        ),
        migrations.AlterField(
            model_name='pool',
            name='least_isolation',
            field=models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], default='namespaces', help_text="Weakest sandbox that the pool's jobs accept, unless their project sets another.", max_length=20, verbose_name='minimum isolation'),
        ),
        migrations.AlterField(
            model_name='worker',
            name='offered_isolation',
            field=models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], editable=False, max_length=20, null=True),
        ),
        migrations.AlterField(
            model_name='worker',
            name='state',
            field=models.CharField(choices=[('active', 'Active'), ('draining', 'Draining'), ('maintenance', 'Maintenance'), ('archived', 'Archived'), ('revoked', 'Revoked')], default='active', editable=False, max_length=20),
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
        migrations.CreateModel(
            name='WorkerSpec',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('spec', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='worker_specs', to='workers.hardwarespec')),
                ('worker', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='worker_specs', to='workers.worker')),
            ],
            options={
                'verbose_name': 'association',
            },
        ),
        migrations.AddField(
            model_name='worker',
            name='specs',
            field=models.ManyToManyField(related_name='workers', through='workers.WorkerSpec', to='workers.hardwarespec'),
        ),
        migrations.AddConstraint(
            model_name='worker',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('archived_at__isnull', True), models.Q(('state', 'archived'), _negated=True)), models.Q(('archived_at__isnull', False), ('state__in', ['archived', 'revoked'])), _connector='OR'), name='worker_archived_state'),
        ),
        migrations.AddConstraint(
            model_name='workerspec',
            constraint=models.UniqueConstraint(fields=('worker', 'spec'), name='workerspec_once'),
        ),
    ]
