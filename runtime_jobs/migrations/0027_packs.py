"""Add versions of packs, the limits of the artifacts of one job, and artifacts that are sent in pieces.

Safe while processes of the former release write: each new column has a constant default in the database, so no table
is rewritten, and their rows have it.
"""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# A pack run names a version, and its result is evidence of what was executed: a version never changes.
IMMUTABLE = """
CREATE FUNCTION refuse_pack_change_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a version of a pack never changes' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER pack_versions_stay BEFORE UPDATE ON pack_versions
    FOR EACH ROW EXECUTE FUNCTION refuse_pack_change_v1();
"""
MUTABLE = """
DROP TRIGGER pack_versions_stay ON pack_versions;
DROP FUNCTION refuse_pack_change_v1();
"""


class Migration(migrations.Migration):

    dependencies = [('runtime_jobs', '0024_key_of_queued_jobs')]

    operations = [
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
                'constraints': [models.UniqueConstraint(fields=('organization', 'pack_id', 'version'), name='one_pack_per_version')],
            },
        ),
        migrations.RunSQL(IMMUTABLE, MUTABLE),
        migrations.AddField(
            model_name='storedartifact',
            name='received_bytes',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='plan',
            name='max_job_artifacts',
            field=models.PositiveIntegerField(blank=True, db_default=1000, default=1000, help_text='Artifacts that the worker of one job uploads. Further ones are answered 429. Empty: unlimited.', null=True, verbose_name='max artifacts per job'),
        ),
        migrations.AddField(
            model_name='plan',
            name='max_job_artifact_bytes',
            field=models.BigIntegerField(blank=True, db_default=10737418240, default=10737418240, help_text='Bytes of these artifacts together. Further ones are answered 429. Empty: unlimited.', null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='max artifact bytes per job'),
        ),
    ]
