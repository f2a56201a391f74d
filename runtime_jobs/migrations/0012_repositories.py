"""Create the table of git repositories. A new table: the former release does not use it."""

import django.db.models.deletion
import django.db.models.functions.datetime
import django.db.models.functions.text
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runtime_jobs', '0011_jobs_of_hardware_spec'),
    ]

    operations = [
        migrations.CreateModel(
            name='Repository',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('owner', models.CharField(max_length=100)),
                ('name', models.CharField(max_length=100)),
                ('is_private', models.BooleanField(default=False, help_text='Git asks for credentials.', verbose_name='private')),
                ('next_run_index', models.PositiveBigIntegerField(default=1, editable=False)),
                ('origin', models.CharField(help_text='https://host/owner/name, or the path of a bare repository.', max_length=1024)),
                ('sealed_credential', models.BinaryField(editable=False, null=True)),
                ('mirrored_at', models.DateTimeField(editable=False, null=True, verbose_name='mirrored')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='git_repositories', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'repositories',
                'verbose_name_plural': 'repositories',
                'constraints': [models.UniqueConstraint(django.db.models.functions.text.Lower('owner'), django.db.models.functions.text.Lower('name'), name='one_repository_per_name'), models.CheckConstraint(condition=models.Q(('next_run_index__gte', 1)), name='repository_run_index_from_1')],
            },
        ),
    ]
