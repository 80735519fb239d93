"""Settings for Celery in a Django project."""

from .base import *  # noqa: F403
