"""The tasks of procrastinate in a Django project."""

from procrastinate.contrib.django import app

from . import rows

__all__ = ["app"]

app.task(name="save")(rows.save)
app.task(name="asave")(rows.asave)
