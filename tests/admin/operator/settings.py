"""The tests' settings with the shop's tasks, for the site that the operator works on."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.admin.operator.shop"]
TASKS["default"]["OPTIONS"]["modules"] = ["tests.admin.operator.shop.tasks"]
TASKS["default"]["OPTIONS"]["queues"] = {"payments": {"latency_warning": "1m"}}
