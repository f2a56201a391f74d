"""The public halves of signing keys: a new table, which the former release does not use."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0021_incidents_of_webhooks')]

    operations = [
        migrations.CreateModel(
            name='SigningKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key_id', models.CharField(max_length=64, unique=True)),
                ('public_pem', models.TextField()),
                ('created_at', models.DateTimeField()),
                ('retired_at', models.DateTimeField(null=True)),
            ],
            options={'db_table': 'signing_keys', 'default_permissions': ('view',)},
        ),
    ]
