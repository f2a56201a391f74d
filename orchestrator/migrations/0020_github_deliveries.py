"""Name the deliveries that GitHub has sent so, beside those to webhooks. Django's state only: the table stays as it is."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0019_webhooks')]

    operations = [
        migrations.AlterModelOptions(
            name='webhookdelivery',
            options={'verbose_name': 'GitHub delivery', 'verbose_name_plural': 'GitHub deliveries'},
        ),
    ]
