"""The tests' settings with another isolation level than PostgreSQL's default."""

import os

from psycopg import IsolationLevel

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"].setdefault("OPTIONS", {})["isolation_level"] = IsolationLevel[os.environ["TEST_ISOLATION"]]
