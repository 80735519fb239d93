"""The tests' settings behind PgBouncer 1.21 or later, which prepares the statements of clients on each server."""

from tests.faults.pooled_settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"].setdefault("OPTIONS", {})["prepare_threshold"] = 1
