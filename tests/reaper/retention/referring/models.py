"""A row that refers to a task, and a row that refers to it."""

from django.db import models


class Remark(models.Model):
    text = models.CharField(max_length=100, primary_key=True)
    task = models.ForeignKey("horsies_django.Task", models.CASCADE)


class Answer(models.Model):
    remark = models.ForeignKey(Remark, models.CASCADE)
