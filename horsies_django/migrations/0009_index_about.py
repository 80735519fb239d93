"""The index of tasks that are about rows."""

from django.db import migrations, models

from horsies_django.db.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("horsies_django", "0008_task_about")]

    operations = [
        AddIndexOnline(
            "task",
            models.Index(
                fields=["about_model", "about_id", "id"],
                condition=models.Q(about_model__isnull=False),
                name="horsies_task_about",
            ),
        ),
    ]
