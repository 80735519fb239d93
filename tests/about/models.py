"""Models of a shop, with each kind of key and of inheritance."""

from uuid import uuid4

from django.db import models


class Customer(models.Model):
    """Deletes of customers cascade to their orders."""

    name = models.CharField(max_length=100, default="")


class Order(models.Model):
    """Its tasks are cancelled with it."""

    customer = models.ForeignKey(Customer, models.CASCADE, null=True, related_name="orders")
    runs = models.IntegerField(default=0)


class RushOrder(Order):
    """A proxy."""

    class Meta:
        proxy = True


class Invoice(models.Model):
    """Its tasks are kept; its key is that of its order."""

    order = models.OneToOneField(Order, models.CASCADE, primary_key=True)


class Place(models.Model):
    """Its tasks are cancelled with it."""


class Restaurant(Place):
    """A child, whose key is that of its parent."""


class Ticket(models.Model):
    """A key that is a UUID. Its tasks are cancelled with it."""

    id = models.UUIDField(primary_key=True, default=uuid4)


class Seat(models.Model):
    """A composite key. Its tasks are cancelled with it."""

    pk = models.CompositePrimaryKey("row", "number", "ticket")
    row = models.CharField(max_length=20)
    number = models.IntegerField()
    ticket = models.UUIDField()


class Page(models.Model):
    """A key that may be too long. The tasks of pages are cancelled with them."""

    path = models.CharField(max_length=500, primary_key=True)


class KeyOfItsOwn(models.CharField):
    """A field that converts its values."""

    def get_prep_value(self, value):
        return f"own-{value}"


class Badge(models.Model):
    """A key that has another text in Python than in the database."""

    code = KeyOfItsOwn(max_length=20, primary_key=True)


class Visible(models.Manager):
    """Hides the documents that are deleted softly."""

    def get_queryset(self):
        return super().get_queryset().filter(is_deleted=False)


class Document(models.Model):
    """Rows that a soft delete hides, from the base manager too. Its tasks are cancelled with it."""

    is_deleted = models.BooleanField(default=False)

    objects = Visible()

    class Meta:
        base_manager_name = "objects"


class Day(models.Model):
    """A key of which no task can be."""

    date = models.DateField(primary_key=True)


class Unlisted(models.Model):
    """Not in OPTIONS["about"]: a delete changes none of its tasks."""
