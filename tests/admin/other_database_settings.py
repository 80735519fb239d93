"""Settings with the queue's tables only in a second database, and all others in the default one."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, TASKS

DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["OTHER_DATABASE"]},
    "queue": DATABASES["default"],
}
DATABASE_ROUTERS = ["tests.admin.other_database_settings.Router"]
TASKS = {"default": TASKS["default"] | {"OPTIONS": TASKS["default"]["OPTIONS"] | {"database": "queue"}}}


class Router:
    """Routes migrations only: the queue itself has to name the database of its reads and writes."""

    def allow_migrate(self, db, app_label, **hints):
        return (db == "queue") is (app_label in ("horsies_django", "jobs"))
