"""Name the isolation `microvm` among the choices; the database does not change."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('leases', '0008_write_changes_v3'),
    ]

    operations = [
        migrations.AlterField(
            model_name='laneprofile',
            name='least_isolation',
            field=models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], max_length=20),
        ),
    ]
