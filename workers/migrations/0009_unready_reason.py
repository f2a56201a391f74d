"""Give workers the reason why they do not claim. Claims neither read nor write the column."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('workers', '0008_actions_runners'),
    ]

    operations = [
        migrations.AddField(
            model_name='worker',
            name='unready_reason',
            field=models.CharField(blank=True, db_default='', default='', editable=False, help_text='Why the worker does not claim jobs, as it reported. Its next claim clears it.', max_length=500),
        ),
    ]
