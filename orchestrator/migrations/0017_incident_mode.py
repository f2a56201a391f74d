"""Let incidents be acknowledged, keep how they were resolved, and create the table of incident modes.

Safe while processes of the former release write: each new column is null or has a constant default in the database, and
rows of the former release name no job. Incidents are few, so the unique index is built within a short lock.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0016_incidents_of_jobs'),
        ('runtime_jobs', '0019_roles_and_operator_event_columns'),
    ]

    operations = [
        migrations.AlterField(
            model_name='incident',
            name='kind',
            field=models.CharField(choices=[('breaker', 'Breaker'), ('job', 'Job'), ('replay', 'Replay'), ('webhook', 'Webhook')], max_length=20),
        ),
        migrations.AddField(
            model_name='incident',
            name='reason',
            field=models.CharField(blank=True, db_default='', default='', max_length=40),
        ),
        migrations.AddField(
            model_name='incident',
            name='acknowledged_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='incident',
            name='acknowledged_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AddField(
            model_name='incident',
            name='resolution',
            field=models.CharField(blank=True, db_default='', default='', max_length=500),
        ),
        migrations.AddConstraint(
            model_name='incident',
            constraint=models.UniqueConstraint(condition=models.Q(('job_ulid__isnull', False), ('resolved_at', None)), fields=('job_ulid', 'kind'), name='one_unresolved_incident_per_job'),
        ),
        migrations.CreateModel(
            name='IncidentMode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('org_slug', models.CharField(max_length=63, unique=True)),
                ('reason', models.CharField(max_length=500)),
                ('begun_at', models.DateTimeField()),
                ('begun_by', models.CharField(max_length=200)),
                ('until', models.DateTimeField()),
            ],
            options={
                'db_table': 'incident_modes',
            },
        ),
        migrations.CreateModel(
            name='QuotaOverview',
            fields=[],
            options={
                'verbose_name': 'quota',
                'proxy': True,
                'default_permissions': ('view',),
                'indexes': [],
                'constraints': [],
            },
            bases=('runtime_jobs.organization',),
        ),
    ]
