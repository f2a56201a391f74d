"""Keys of people, and API tokens of one project, for the Bencher API."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runtime_jobs', '0009_public_tenants'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='apitoken',
            name='project',
            field=models.ForeignKey(blank=True, help_text='Creates a key for this project and the Bencher API (bencher_run_…). Empty: a token of the organization for the native API.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='runtime_jobs.project'),
        ),
        migrations.AlterField(
            model_name='project',
            name='least_isolation',
            field=models.CharField(blank=True, choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], help_text='Weakest sandbox that is accepted. Empty: the minimum isolation of the pool.', max_length=20, verbose_name='minimum isolation'),
        ),
        migrations.CreateModel(
            name='PersonalKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('is_jwt', models.BooleanField(default=False, help_text='Creates a signed token, for clients that accept no other form. It always expires.', verbose_name='JSON Web Token')),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField(blank=True, help_text='In UTC. Empty: never.', null=True, verbose_name='expires')),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='personal_keys', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'personal key',
            },
        ),
    ]
