"""Create the table of keys that sign identity tokens. A new table: the former release does not use it."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runtime_jobs', '0016_stored_objects'),
    ]

    operations = [
        migrations.CreateModel(
            name='IdentityKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kid', models.CharField(max_length=64, unique=True)),
                ('sealed', models.BinaryField(editable=False)),
                ('public_jwk', models.JSONField()),
                ('created_at', models.DateTimeField()),
                ('signs_from', models.DateTimeField()),
            ],
            options={
                'verbose_name': 'identity key',
                'db_table': 'identity_keys',
            },
        ),
    ]
