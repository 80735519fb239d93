"""The tests' settings, with tracing to a file."""

from tests.settings import *  # noqa: F403
from tests.settings import TASKS as PLAIN

OPTIONS = {
    **PLAIN["default"]["OPTIONS"],
    "modules": ["tests.extras.tracing.jobs"],
    "middleware": ["tests.extras.tracing.jobs.Tracing"],
}
TASKS = {"default": {**PLAIN["default"], "OPTIONS": OPTIONS}}
