"""The queue in a database of a vendor that is refused; no server has to be there."""

from tests.settings import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "tests.checks.other_vendor", "NAME": "nowhere"}}
