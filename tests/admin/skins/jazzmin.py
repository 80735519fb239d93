"""The tests' settings with django-jazzmin."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = ["jazzmin", *INSTALLED_APPS]
