"""The tests' settings, with tracing and no tracer provider."""

from tests.extras.tracing.settings import *  # noqa: F403
from tests.extras.tracing.settings import TASKS as TRACED

OPTIONS = {
    **TRACED["default"]["OPTIONS"],
    "middleware": ["horsies_django.extras.opentelemetry.OpenTelemetryMiddleware"],
}
TASKS = {"default": {**TRACED["default"], "OPTIONS": OPTIONS}}
