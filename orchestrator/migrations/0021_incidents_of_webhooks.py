"""Give incidents the webhook that was paused. A column that is null and a small table: the former release writes on.

An incident that a process of the former release opens meanwhile names no webhook, and is resolved by a person.
"""

from django.db import migrations, models

# Until now only the sentence for people has named the webhook.
FILL = r"""
UPDATE incidents SET webhook_ulid = substring(summary FROM '^The webhook (whk_[0-9a-z]{26}) was paused: ')
 WHERE kind = 'webhook'"""


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0020_github_deliveries')]

    operations = [
        migrations.AddField(
            model_name='incident',
            name='webhook_ulid',
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name='incident',
            constraint=models.UniqueConstraint(condition=models.Q(('resolved_at', None), ('webhook_ulid__isnull', False)), fields=('webhook_ulid',), name='one_unresolved_incident_per_webhook'),
        ),
    ]
