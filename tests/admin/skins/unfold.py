"""The tests' settings with django-unfold."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
