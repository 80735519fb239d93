"""The settings of the tests, with a token for metrics."""

from tests.extras.monitoring import TOKEN, with_metrics
from tests.settings import *  # noqa: F403
from tests.settings import TASKS

TASKS = with_metrics(TASKS, token=TOKEN, public=["health/live"])
