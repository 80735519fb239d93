"""Settings for procrastinate in a Django project."""

from .base import *  # noqa: F403
from .base import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "procrastinate.contrib.django"]
PROCRASTINATE_IMPORT_PATHS = ["benchmarks.jobs.procrastinate"]
