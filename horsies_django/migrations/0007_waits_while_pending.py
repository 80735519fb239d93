"""Only a task that is PENDING waits."""

from django.db import migrations, models

from horsies_django.db.online import AddConstraintOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("horsies_django", "0006_index_awaited_workflows")]

    operations = [
        AddConstraintOnline(
            "task",
            models.CheckConstraint(
                condition=models.Q(waits_for__isnull=True) | models.Q(status="PENDING"),
                name="horsies_task_waits_while_pending",
            ),
        ),
    ]
