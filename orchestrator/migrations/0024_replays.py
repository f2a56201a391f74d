"""Create the table of replays. Safe while the former release is in use: the table is new."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0023_signing_keys')]

    operations = [
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
    ]
