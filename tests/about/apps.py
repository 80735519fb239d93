"""The app of the models that tests send tasks about."""

from django.apps import AppConfig


class AboutConfig(AppConfig):
    name = "tests.about"
    label = "about"
    default_auto_field = "django.db.models.BigAutoField"
