"""Settings for django-q2: keep every result, fetch ten tasks at once."""

import os

from .base import *  # noqa: F403
from .base import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_q"]
Q_CLUSTER = {
    "name": "benchmark",
    "orm": "default",
    "workers": int(os.environ.get("Q_WORKERS", "2")),
    "timeout": 60,
    "retry": 120,
    "bulk": 10,
    "save_limit": 0,
}
