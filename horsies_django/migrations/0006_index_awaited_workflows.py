"""The index of ended workflows for which tasks may wait."""

from django.db import migrations, models

from horsies_django.db.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("horsies_django", "0005_index_waits")]

    operations = [
        AddIndexOnline(
            "workflow",
            models.Index(
                fields=["id"],
                condition=models.Q(
                    status__in=["CANCELLED", "COMPLETED", "EXPIRED", "FAILED"],
                    is_awaited=True,
                ),
                name="horsies_workflow_awaited",
            ),
        ),
    ]
