"""The tests' settings, with an app that records signals."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as PLAIN

INSTALLED_APPS = [*PLAIN, "tests.worker.signals.apps.ListeningConfig"]
