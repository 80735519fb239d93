"""The settings with django-unfold too."""

from tests.beside.settings import *  # noqa: F403
from tests.beside.settings import INSTALLED_APPS

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
