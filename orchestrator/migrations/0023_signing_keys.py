"""The public halves of signing keys, and audit bundles: new tables, which the former release does not use."""

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
            options={'db_table': 'signing_keys', 'default_permissions': ('view', 'change')},
        ),
        migrations.CreateModel(
            name='AuditBundle',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('org_slug', models.CharField(max_length=63)),
                ('job_ulid', models.CharField(max_length=30, unique=True)),
                ('since', models.DateTimeField()),
                ('until', models.DateTimeField()),
                ('byte_count', models.BigIntegerField()),
                ('sha256', models.CharField(max_length=64)),
                ('key_id', models.CharField(max_length=64)),
                ('lines', models.JSONField()),
                ('written_at', models.DateTimeField()),
            ],
            options={'db_table': 'audit_bundles', 'verbose_name': 'audit bundle', 'default_permissions': ('view',)},
        ),
    ]
