"""The queue's tables in a database of their own, and in no other; all else in the default one."""

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
    """Reads and writes are sent nowhere in particular: the queue has to say for itself where its tables are."""

    def allow_migrate(self, db, app_label, **hints):
        return (db == "queue") is (app_label in ("horsies_django", "jobs"))
