"""The row that a task is about."""

from django.db import migrations, models

from horsies_django.db.online import AddColumnOnline


class Migration(migrations.Migration):
    dependencies = [("horsies_django", "0007_task_output")]

    operations = [
        AddColumnOnline(
            "task",
            "about_model",
            models.CharField(
                blank=True,
                help_text="The model of the row it is about.",
                max_length=201,
                null=True,
                verbose_name="about model",
            ),
        ),
        AddColumnOnline(
            "task",
            "about_id",
            models.CharField(
                blank=True,
                help_text="The key of that row; JSON if composite.",
                max_length=255,
                null=True,
                verbose_name="about row",
            ),
        ),
    ]
