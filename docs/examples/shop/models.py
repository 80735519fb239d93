"""The data of the examples and of the pages."""

from django.db import models


class Order(models.Model):
    """An order of the shop."""

    item = models.CharField(max_length=100)
    email = models.EmailField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self):
        return self.item


class Account(models.Model):
    """What a customer has."""

    balance = models.IntegerField(default=0)

    def __str__(self):
        return f"{self.balance}"


class Mail(models.Model):
    """A mail that was sent."""

    to = models.EmailField()

    def __str__(self):
        return self.to
