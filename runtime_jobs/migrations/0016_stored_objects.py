"""Create the tables of stored artifacts and caches, and give plans a limit of their bytes.

Safe while the former release is in use: the tables are new, and the column has a constant default in the database.
"""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import runtime_jobs.identifiers


def stored_object_fields():
    """Return the columns that both tables have."""
    return [
        ('object_key', models.CharField(max_length=1024, unique=True)),
        ('byte_count', models.BigIntegerField(verbose_name='size')),
        ('sha256', models.CharField(max_length=64, null=True)),
        ('created_at', models.DateTimeField()),
        ('upload_until', models.DateTimeField()),
        ('completed_at', models.DateTimeField(null=True)),
        ('is_abandoned', models.BooleanField(default=False)),
    ]


def tenant_fields():
    """Return the foreign keys that both tables have."""
    return [
        ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runtime_jobs.organization')),
        ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runtime_jobs.project')),
    ]


class Migration(migrations.Migration):

    dependencies = [
        ('runtime_jobs', '0015_secrets'),
    ]

    operations = [
        migrations.AddField(
            model_name='plan',
            name='max_stored_bytes',
            field=models.BigIntegerField(blank=True, db_default=53687091200, default=53687091200, help_text='Artifacts and caches per organization. Further uploads are answered 402. Empty: unlimited.', null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='max stored bytes'),
        ),
        migrations.CreateModel(
            name='StoredArtifact',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                *stored_object_fields(),
                ('artifact_ulid', models.CharField(default=runtime_jobs.identifiers.new_artifact_id, editable=False, max_length=30, unique=True)),
                ('name', models.CharField(max_length=1024)),
                ('expires_at', models.DateTimeField(help_text='Null: never.', null=True, verbose_name='expires')),
                ('batch', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='stored_artifacts', to='runtime_jobs.batch')),
                ('job', models.ForeignKey(db_column='job_ulid', db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='stored_artifacts', to='runtime_jobs.job', to_field='job_ulid')),
                *tenant_fields(),
            ],
            options={
                'db_table': 'runtime_stored_artifacts',
                'indexes': [models.Index(condition=models.Q(('completed_at', None)), fields=['upload_until'], name='artifacts_by_upload'), models.Index(fields=['expires_at'], name='artifacts_by_expiry'), models.Index(models.F('organization'), models.OrderBy(models.F('id'), descending=True), name='artifacts_of_organization')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('batch__isnull', False), ('is_abandoned', False)), fields=('batch', 'name'), name='one_artifact_per_batch_name'), models.UniqueConstraint(condition=models.Q(('batch__isnull', True), ('is_abandoned', False)), fields=('job', 'name'), name='one_artifact_per_job_name'), models.CheckConstraint(condition=models.Q(('byte_count__gte', 0)), name='artifact_size_is_not_negative')],
            },
        ),
        migrations.CreateModel(
            name='CacheEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                *stored_object_fields(),
                ('scope', models.CharField(blank=True, max_length=255)),
                ('key', models.CharField(max_length=512)),
                ('version', models.CharField(max_length=64)),
                ('last_used_at', models.DateTimeField()),
                *tenant_fields(),
            ],
            options={
                'verbose_name_plural': 'cache entries',
                'db_table': 'runtime_cache_entries',
                'indexes': [models.Index(condition=models.Q(('completed_at', None)), fields=['upload_until'], name='cache_entries_by_upload'), models.Index(fields=['last_used_at'], name='cache_entries_by_use')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('is_abandoned', False)), fields=('project', 'scope', 'version', 'key'), name='one_cache_entry_per_key'), models.CheckConstraint(condition=models.Q(('byte_count__gte', 0)), name='cache_size_is_not_negative')],
            },
        ),
        migrations.CreateModel(
            name='StorageUsage',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='runtime_jobs.organization')),
                ('byte_count', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'runtime_storage_usage',
            },
        ),
    ]
