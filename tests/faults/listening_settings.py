"""The tests' settings behind a pooler in transaction mode, with an alias that leads past it, for LISTEN."""

import os

import environ

from tests.faults.pooled_settings import *  # noqa: F403
from tests.faults.pooled_settings import DATABASES, TASKS

DATABASES["direct"] = environ.Env.db_url_config(os.environ["DIRECT_DATABASE_URL"])
TASKS["default"]["OPTIONS"]["listen_database"] = "direct"
