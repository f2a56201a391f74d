"""Create the ledger of billed minutes, which triggers keep append-only. A new table: the former release does not use it."""

from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON usage_records
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON usage_records
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('runtime_jobs', '0007_settling_states'),
    ]

    operations = [
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
        migrations.RunSQL(APPEND_ONLY, migrations.RunSQL.noop),
    ]
