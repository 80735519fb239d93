"""Settings with the queue in a database of its own, and the router that the package ships."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, TASKS

DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["OTHER_DATABASE"]},
    "queue": DATABASES["default"],
}
DATABASE_ROUTERS = ["horsies_django.routers.QueueRouter"]
TASKS = {"default": TASKS["default"] | {"OPTIONS": TASKS["default"]["OPTIONS"] | {"database": "queue"}}}
