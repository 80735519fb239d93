"""Bodies that read a row and save it with Django's ORM."""

from __future__ import annotations

from typing import Final

from django.db import models

from benchmarks import probe

#: Rows of the table; bodies that run at the same time use different ones.
ROWS: Final = 1_000


class Row(models.Model):
    """A row with a number."""

    value = models.IntegerField(default=0)
    objects: models.Manager[Row] = models.Manager()

    class Meta:
        app_label = "benchmarks"

    def __str__(self) -> str:
        return str(self.value)


def save(number: int) -> int:
    probe.mark(number)
    row = Row.objects.get(pk=number % ROWS + 1)
    row.value += 1
    row.save()
    return number


async def asave(number: int) -> int:
    probe.mark(number)
    row = await Row.objects.aget(pk=number % ROWS + 1)
    row.value += 1
    await row.asave()
    return number
