"""The schema of 0.1.0. A database that ran commit 8637103 has all of it: `replaces` lists the migrations it applied."""

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.identifiers
import workers.registry.models
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    replaces = [
        ('workers', '0001_initial'),
        ('workers', '0002_lease_ids_and_certificates'),
        ('workers', '0003_scheduling'),
        ('workers', '0004_offers'),
    ]

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Pool',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('description', models.CharField(blank=True, max_length=200)),
                ('least_isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces')], default='namespaces', max_length=20)),
                ('policy', models.CharField(choices=[('fifo', 'Fifo'), ('fair', 'Fair')], default='fifo', editable=False, help_text='Among jobs of one priority: strictly by age, or organizations by turns.', max_length=10)),
                ('trusts_lease_ids', models.BooleanField(default=False, help_text="Delta CI's own runner sends no credentials: whoever knows the id of a lease of this pool's workers may speak for its job.")),
            ],
        ),
        migrations.CreateModel(
            name='Worker',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('worker_id', models.CharField(default=runtime_jobs.identifiers.new_worker_id, editable=False, max_length=30, unique=True)),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}\\Z', 'Lower-case letters, digits and hyphens, at most 63.')])),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('certificate_subject', models.CharField(blank=True, help_text='By which a trusted proxy names it after it has checked its client certificate.', max_length=512, null=True, unique=True)),
                ('capacity', models.PositiveIntegerField(default=1, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(256)])),
                ('labels', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), blank=True, default=list, size=None)),
                ('capabilities', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), blank=True, default=workers.registry.models.registered_capabilities, size=None)),
                ('state', models.CharField(choices=[('active', 'Active'), ('draining', 'Draining'), ('maintenance', 'Maintenance'), ('revoked', 'Revoked')], default='active', editable=False, max_length=20)),
                ('note', models.CharField(blank=True, editable=False, max_length=200)),
                ('session', models.CharField(blank=True, editable=False, help_text='ULID of its newest process.', max_length=26)),
                ('last_seen_at', models.DateTimeField(editable=False, null=True)),
                ('offered', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), editable=False, null=True, size=None)),
                ('offered_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), editable=False, null=True, size=None)),
                ('offered_isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces')], editable=False, max_length=20, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='workers', to='workers.pool')),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('capacity__gte', 1)), name='worker_capacity_positive')],
            },
        ),
    ]
