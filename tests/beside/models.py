"""A model that keeps its history."""

from django.db import models
from simple_history.models import HistoricalRecords


class Note(models.Model):
    text = models.TextField()
    history = HistoricalRecords(user_db_constraint=False)  # this app has no migrations, so its tables are made first

    class Meta:
        app_label = "beside"
