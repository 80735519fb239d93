"""Settings with the queue in a database of its own, and no router."""

import os

from tests.enqueue.routed_queue_settings import *  # noqa: F403

DATABASE_ROUTERS = os.environ.get("ROUTERS", "").split()
