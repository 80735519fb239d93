"""The index of tasks that wait for an event, a workflow or a time."""

from django.db import migrations, models

from horsies_django.db.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("horsies_django", "0004_workflow_is_awaited")]

    operations = [
        AddIndexOnline(
            "task",
            models.Index(
                fields=["waits_for", "id"],
                condition=models.Q(waits_for__isnull=False),
                name="horsies_task_waits_for",
            ),
        ),
    ]
