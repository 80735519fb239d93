"""Whether tasks wait for the end of a workflow."""

from django.db import migrations, models

from horsies_django.db.online import AddColumnOnline


class Migration(migrations.Migration):
    dependencies = [("horsies_django", "0003_task_waits_for")]

    operations = [
        AddColumnOnline("workflow", "is_awaited", models.BooleanField(db_default=False, default=False)),
    ]
