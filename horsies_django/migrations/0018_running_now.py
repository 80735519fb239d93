from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("horsies_django", "0017_run_again"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunningNow",
            fields=[],
            options={
                "verbose_name": "running now",
                "verbose_name_plural": "running now",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("horsies_django.task",),
        ),
    ]
