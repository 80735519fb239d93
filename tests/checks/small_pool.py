"""PostgreSQL with a small pool, whose connections are not checked; no server is needed."""

from tests.checks.poor_postgres import *  # noqa: F403
from tests.checks.poor_postgres import DATABASES

DATABASES["default"] |= {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": {"min_size": 3}}}
