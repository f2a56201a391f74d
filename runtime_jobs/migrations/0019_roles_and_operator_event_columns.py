"""Add what the API of document 004 stores: roles of members, default projects, tenants of operator events, schemas.

Safe while processes of the former release write: each new column has a constant default in the database or is null,
so no table is rewritten. Their operator events belong to no tenant, as before.
"""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import runtime_jobs.db_functions

# Rows that exist are older than every position of a reader, so their stamp is 0. A default that calls a function
# would rewrite the table, and is therefore set in a second statement.
STAMP = """
ALTER TABLE operator_events ADD COLUMN xid xid8 NOT NULL DEFAULT '0';
ALTER TABLE operator_events ALTER COLUMN xid SET DEFAULT
    greatest(pg_current_xact_id(), (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8);
"""
UNSTAMP = "ALTER TABLE operator_events DROP COLUMN xid"


class Migration(migrations.Migration):

    dependencies = [('runtime_jobs', '0018_step_logs')]

    operations = [
        migrations.AddField(
            model_name='membership',
            name='role',
            field=models.CharField(choices=[('viewer', 'Viewer'), ('operator', 'Operator'), ('quota_manager', 'quota manager')], db_default='viewer', default='viewer', help_text='viewer: reads jobs, events and limits. operator: also cancels jobs and controls webhooks and incidents. quota manager: also changes limits, pauses and throttles.', max_length=20),
        ),
        migrations.AddField(
            model_name='organization',
            name='default_project',
            field=models.ForeignKey(blank=True, db_index=False, help_text='Project of jobs that name none (API of document 004). Empty: the only enabled project.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='runtime_jobs.project'),
        ),
        migrations.AddField(
            model_name='operatorevent',
            name='org_slug',
            field=models.CharField(max_length=63, null=True),
        ),
        migrations.AddField(
            model_name='operatorevent',
            name='job_type',
            field=models.CharField(max_length=50, null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='replay_of_job_ulid',
            field=models.CharField(help_text='The job that this one repeats.', max_length=30, null=True),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(STAMP, UNSTAMP)],
            state_operations=[
                migrations.AddField(
                    model_name='operatorevent',
                    name='xid',
                    field=runtime_jobs.db_functions.TransactionId(db_default=runtime_jobs.db_functions.FeedStamp(), editable=False),
                ),
            ],
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
                'constraints': [models.UniqueConstraint(fields=('organization', 'job_type'), name='one_payload_schema_per_type')],
            },
        ),
    ]
