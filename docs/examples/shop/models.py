"""The data of the examples."""

from django.db import models


class Order(models.Model):
    """An order of the shop."""

    item = models.CharField(max_length=100)

    def __str__(self):
        return self.item
