"""Create the table of the bytes that organizations have in the image registry. The former release does not use it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0009_images'),
        ('runtime_jobs', '0011_jobs_of_hardware_spec'),
    ]

    operations = [
        migrations.CreateModel(
            name='ImageUsage',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='runtime_jobs.organization')),
                ('bytes', models.BigIntegerField()),
            ],
            options={
                'db_table': 'image_usage',
            },
        ),
    ]
