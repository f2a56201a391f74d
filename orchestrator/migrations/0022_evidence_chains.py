"""Create the chains of operator events and the checkpoints. New tables: the former release does not use them.

Operator events of before are linked by the scheduler process of this release, in the order of the feeds. The triggers
are those of the event history: retention alone passes them, by `orchestrator.maintenance`.
"""

import django.db.models.deletion
from django.db import migrations, models

import runtime_jobs.db_functions

GUARDS = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON operator_event_links
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON operator_event_links
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OF id, org_slug, number, created_at, sha256, envelope OR DELETE
    ON evidence_checkpoints FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON evidence_checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OF job_ulid, checkpoint_id, seq, head OR DELETE
    ON evidence_checkpoint_jobs FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON evidence_checkpoint_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0021_incidents_of_webhooks'),
        ('runtime_jobs', '0025_evidence_of_ended_jobs'),
    ]

    operations = [
        migrations.CreateModel(
            name='EvidencePosition',
            fields=[
                ('name', models.CharField(max_length=20, primary_key=True, serialize=False)),
                ('stamp', runtime_jobs.db_functions.TransactionId()),
                ('event_id', models.BigIntegerField()),
                ('passed_at', models.DateTimeField(null=True)),
                ('requested_at', models.DateTimeField(null=True)),
            ],
            options={'db_table': 'evidence_positions'},
        ),
        migrations.CreateModel(
            name='EvidenceChain',
            fields=[
                ('org_slug', models.CharField(max_length=63, primary_key=True, serialize=False)),
                ('events', models.BigIntegerField(default=0)),
                ('head', models.CharField(blank=True, max_length=64)),
                ('deleted_events', models.BigIntegerField(default=0)),
                ('deleted_head', models.CharField(blank=True, max_length=64)),
                ('checkpoints', models.BigIntegerField(default=0)),
                ('checkpoint_sha256', models.CharField(blank=True, max_length=64)),
                ('checkpointed_events', models.BigIntegerField(default=0)),
            ],
            options={'db_table': 'evidence_chains'},
        ),
        migrations.CreateModel(
            name='OperatorEventLink',
            fields=[
                ('event_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('org_slug', models.CharField(max_length=63)),
                ('seq', models.BigIntegerField()),
                ('prev_hash', models.CharField(blank=True, max_length=64)),
                ('hash', models.CharField(max_length=64)),
            ],
            options={
                'db_table': 'operator_event_links',
                'constraints': [models.UniqueConstraint(fields=('org_slug', 'seq'), name='one_operator_event_per_seq')],
            },
        ),
        migrations.CreateModel(
            name='Checkpoint',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('org_slug', models.CharField(blank=True, max_length=63)),
                ('number', models.BigIntegerField()),
                ('created_at', models.DateTimeField()),
                ('sha256', models.CharField(max_length=64)),
                ('envelope', models.JSONField()),
                ('filed_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'evidence_checkpoints',
                'default_permissions': ('view',),
                'indexes': [models.Index(condition=models.Q(('filed_at', None)), fields=['id'], name='checkpoints_to_file')],
                'constraints': [models.UniqueConstraint(fields=('org_slug', 'number'), name='one_checkpoint_per_number')],
            },
        ),
        migrations.CreateModel(
            name='CheckpointJob',
            fields=[
                ('job_ulid', models.CharField(max_length=30, primary_key=True, serialize=False)),
                ('seq', models.BigIntegerField()),
                ('head', models.CharField(max_length=64)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('checkpoint', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='orchestrator.checkpoint')),
            ],
            options={'db_table': 'evidence_checkpoint_jobs'},
        ),
        migrations.RunSQL(GUARDS, migrations.RunSQL.noop),
    ]
