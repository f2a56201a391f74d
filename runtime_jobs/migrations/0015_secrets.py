"""Create the tables of secrets, variables and masks. New tables: the former release does not use them."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.text
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runtime_jobs', '0014_workflow_runs'),
    ]

    operations = [
        # The database stores no choices: this changes only Django's state.
        migrations.AlterField(
            model_name='apitoken',
            name='scopes',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('jobs:read', 'Jobs Read'), ('jobs:write', 'Jobs Write'), ('orch:read', 'Orch Read'), ('orch:operate', 'Orch Operate'), ('orch:quota', 'Orch Quota'), ('secrets:write', 'Secrets Write')], max_length=20), default=list, size=None),
        ),
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Letters, digits and underscores. The case of letters does not matter.', max_length=100)),
                ('updated_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField()),
                ('updated_at', models.DateTimeField()),
                ('sealed', models.BinaryField(editable=False)),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.organization')),
                ('repository', models.ForeignKey(blank=True, db_index=False, help_text='Empty: for all repositories of the organization.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'runtime_secrets',
                'constraints': [models.UniqueConstraint(models.F('organization'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository', None)), name='one_secret_per_organization_name'), models.UniqueConstraint(models.F('repository'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository__isnull', False)), name='one_secret_per_repository_name')],
            },
        ),
        migrations.CreateModel(
            name='Variable',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Letters, digits and underscores. The case of letters does not matter.', max_length=100)),
                ('updated_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField()),
                ('updated_at', models.DateTimeField()),
                ('value', models.TextField(help_text='At most 48 KiB. It may not contain ${{.')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.organization')),
                ('repository', models.ForeignKey(blank=True, db_index=False, help_text='Empty: for all repositories of the organization.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.repository')),
            ],
            options={
                'db_table': 'runtime_variables',
                'constraints': [models.UniqueConstraint(models.F('organization'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository', None)), name='one_variable_per_organization_name'), models.UniqueConstraint(models.F('repository'), django.db.models.functions.text.Upper('name'), condition=models.Q(('repository__isnull', False)), name='one_variable_per_repository_name')],
            },
        ),
        migrations.CreateModel(
            name='MaskSnapshot',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('fence', models.BigIntegerField(help_text='Of the claim.')),
                ('sealed', models.BinaryField()),
                ('created_at', models.DateTimeField()),
                ('job', models.OneToOneField(db_column='job_ulid', on_delete=django.db.models.deletion.CASCADE, related_name='mask_snapshot', to='runtime_jobs.job', to_field='job_ulid')),
            ],
            options={
                'db_table': 'runtime_mask_snapshots',
            },
        ),
    ]
