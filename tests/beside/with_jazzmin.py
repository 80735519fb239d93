"""The settings with django-jazzmin too."""

from tests.beside.settings import *  # noqa: F403
from tests.beside.settings import INSTALLED_APPS

INSTALLED_APPS = ["jazzmin", *INSTALLED_APPS]
