"""What the test tasks leave behind."""

from django.db import models


class Entry(models.Model):
    """One effect of one run of a body."""

    key = models.CharField(max_length=100, db_index=True)
    pid = models.IntegerField(default=0)
    at = models.FloatField(default=0)

    class Meta:
        app_label = "jobs"
