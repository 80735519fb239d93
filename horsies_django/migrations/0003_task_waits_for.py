"""What a waiting task waits for."""

from django.db import migrations, models

from horsies_django.db.online import AddColumnOnline


class Migration(migrations.Migration):
    dependencies = [("horsies_django", "0002_task_steps")]

    operations = [
        AddColumnOnline(
            "task",
            "waits_for",
            models.CharField(
                blank=True,
                help_text="Such as event:approved. Its slot is free.",
                max_length=300,
                null=True,
                verbose_name="waits for",
            ),
        ),
    ]
