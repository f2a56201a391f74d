"""Create the tables of the image registry. The former release uses none of them."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.identifiers
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0008_results'),
        ('runtime_jobs', '0010_personal_and_project_keys'),
    ]

    operations = [
        migrations.CreateModel(
            name='ImageBlob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=136, unique=True)),
                ('size', models.BigIntegerField()),
                ('file', models.CharField(max_length=255)),
                ('used_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'image_blobs',
            },
        ),
        migrations.CreateModel(
            name='BlobUpload',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('parts', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), default=list, size=None)),
                ('size', models.BigIntegerField(default=0)),
                ('is_completing', models.BooleanField(default=False)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_uploads',
            },
        ),
        migrations.CreateModel(
            name='ImageManifest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=136)),
                ('media_type', models.CharField(max_length=255)),
                ('artifact_type', models.CharField(blank=True, max_length=255)),
                ('subject', models.CharField(blank=True, max_length=136)),
                ('annotations', models.BinaryField(null=True)),
                ('pushed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('blob', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='manifests', to='orchestrator.imageblob')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_manifests',
            },
        ),
        migrations.CreateModel(
            name='ImageTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(db_collation='C', max_length=128)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('manifest', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tags', to='orchestrator.imagemanifest')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_tags',
            },
        ),
        migrations.CreateModel(
            name='RepositoryBlob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('used_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('blob', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='repositories', to='orchestrator.imageblob')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'image_repository_blobs',
            },
        ),
        migrations.CreateModel(
            name='ManifestBlob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('manifest', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='blobs', to='orchestrator.imagemanifest')),
                ('repository_blob', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='manifests', to='orchestrator.repositoryblob')),
            ],
            options={
                'db_table': 'image_manifest_blobs',
            },
        ),
        migrations.AddIndex(
            model_name='imagemanifest',
            index=models.Index(condition=models.Q(('subject', ''), _negated=True), fields=['project', 'subject', 'id'], name='image_referrers'),
        ),
        migrations.AddConstraint(
            model_name='imagemanifest',
            constraint=models.UniqueConstraint(fields=('project', 'digest'), name='one_manifest_per_digest'),
        ),
        migrations.AddConstraint(
            model_name='imagetag',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='one_tag_per_name'),
        ),
        migrations.AddConstraint(
            model_name='repositoryblob',
            constraint=models.UniqueConstraint(fields=('project', 'blob'), name='one_blob_per_repository'),
        ),
        migrations.AddConstraint(
            model_name='manifestblob',
            constraint=models.UniqueConstraint(fields=('manifest', 'repository_blob'), name='one_reference_per_manifest'),
        ),
    ]
