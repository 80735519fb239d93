"""The queue in a database of an unsupported vendor; no server is needed."""

from tests.settings import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "tests.checks.other_vendor", "NAME": "nowhere"}}
