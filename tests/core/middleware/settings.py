"""The tests' settings, with middleware."""

from tests.core.middleware.samples import WITH_HEADERS
from tests.settings import *  # noqa: F403
from tests.settings import TASKS as PLAIN

OPTIONS = {**PLAIN["default"]["OPTIONS"], "middleware": WITH_HEADERS}
TASKS = {"default": {**PLAIN["default"], "OPTIONS": OPTIONS}}
