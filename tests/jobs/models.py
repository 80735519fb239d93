"""What the test tasks leave behind."""

from datetime import date
from uuid import uuid4

from django.db import models
from django.utils import timezone


class Entry(models.Model):
    """One effect of one run of a body."""

    key = models.CharField(max_length=100, db_index=True)
    pid = models.IntegerField(default=0)
    at = models.FloatField(default=0)

    class Meta:
        app_label = "jobs"


class Item(models.Model):
    """A row that a loop counts up, with a column of each kind that rows may be in the order of."""

    count = models.IntegerField(default=0)
    uid = models.UUIDField(default=uuid4)
    at = models.DateTimeField(default=timezone.now)
    on = models.DateField(default=date.today)
    amount = models.DecimalField(max_digits=12, decimal_places=4, default=0)
    text = models.CharField(max_length=100, default="")
    owner = models.ForeignKey(Entry, models.CASCADE, null=True, related_name="items")
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "jobs"
