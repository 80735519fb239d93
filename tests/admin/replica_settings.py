"""Settings with a replica: the server of REPLICA_URL, else a read-only connection to the same database."""

import os

import environ

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, TASKS

READ_ONLY = {
    "django.db.backends.postgresql": {"options": "-c default_transaction_read_only=on"},
    "django.db.backends.sqlite3": {"init_command": "PRAGMA query_only=ON;"},
}
own = DATABASES["default"]
DATABASES["replica"] = own | {"OPTIONS": own.get("OPTIONS", {}) | READ_ONLY[own["ENGINE"]]}
if url := os.environ.get("REPLICA_URL"):
    DATABASES["replica"] = own | environ.Env.db_url_config(url)
TASKS["default"]["OPTIONS"]["read_database"] = "replica"
