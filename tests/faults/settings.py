"""The tests' settings, on connections of a project that asks for another isolation level than PostgreSQL's own."""

import os

from psycopg import IsolationLevel

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"].setdefault("OPTIONS", {})["isolation_level"] = IsolationLevel[os.environ["TEST_ISOLATION"]]
