"""The tests' settings behind a pooler in transaction mode, with an alias that leads past it, for LISTEN."""

import os
import threading

import environ
from django.db.backends.signals import connection_created

from tests.faults.pooled_settings import *  # noqa: F403
from tests.faults.pooled_settings import DATABASES, TASKS

DATABASES["direct"] = environ.Env.db_url_config(os.environ["DIRECT_DATABASE_URL"])
TASKS["default"]["OPTIONS"]["listen_database"] = "direct"

#: The connects of a thread that listens which the project's receiver still refuses.
refusals = [None] if os.environ.get("REFUSE_FIRST_LISTEN") else []


def refuse(**_):
    if threading.current_thread().name == "horsies-listener" and refusals:
        refusals.pop()
        raise LookupError("no secret yet")


connection_created.connect(refuse)
