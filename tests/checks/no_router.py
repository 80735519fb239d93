"""Settings with the queue in a database of its own, and no router."""

import os

from tests.enqueue.routed_queue_settings import *  # noqa: F403
from tests.enqueue.routed_queue_settings import TASKS

del TASKS["default"]["OPTIONS"]["about"]  # those rows are in the other database

DATABASE_ROUTERS = os.environ.get("ROUTERS", "").split()
