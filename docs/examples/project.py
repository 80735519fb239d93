"""The project of all examples: settings, and a database that is dropped when the example ends.

The database is an SQLite file, or a new database on the PostgreSQL server of DATABASE_URL.
"""

import atexit
import os
import sys
import tempfile
from pathlib import Path

import django
import environ
from django.conf import settings
from django.db import connection


def setup(**options):
    """Set up Django with these OPTIONS of the task backend, and migrate the database.

    In your project, settings.py and ``manage.py migrate`` do this.
    """
    name_script()
    settings.configure(
        SECRET_KEY="for-the-examples-only",
        INSTALLED_APPS=["horsies_django", "shop"],
        DATABASES={"default": _database()},
        TASKS={
            "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": options},
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TIME_ZONE="UTC",
        USE_TZ=True,
        # Discard the worker's log lines: the examples print what matters.
        LOGGING={
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"nowhere": {"class": "logging.NullHandler"}},
            "loggers": {"horsies_django": {"handlers": ["nowhere"], "propagate": False}},
        },
    )
    django.setup()
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    atexit.register(connection.creation.destroy_test_db, name, verbosity=0)


def name_script():
    """Name the script's module after its file instead of ``__main__``: rows contain the module of their task."""
    script = sys.modules["__main__"]
    script.__name__ = Path(script.__file__).stem
    sys.modules[script.__name__] = script


def _database():
    folder = tempfile.TemporaryDirectory(prefix="horsies-examples-")
    atexit.register(folder.cleanup)
    database = environ.Env().db_url("DATABASE_URL", default=f"sqlite:///{folder.name}/unused.sqlite3")
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 30}
        database["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL;"
        database["TEST"] = {"NAME": f"{folder.name}/examples.sqlite3"}
    else:
        database["TEST"] = {"NAME": f"horsies_examples_{os.getpid()}"}
    return database
