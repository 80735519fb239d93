from django.db import models


class Order(models.Model):
    email = models.EmailField()
    state = models.CharField(max_length=20, default="new")


class Note(models.Model):
    """What a person has to look at."""

    text = models.TextField()
